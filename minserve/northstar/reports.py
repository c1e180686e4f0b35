"""Northstar's document reports as a job: a section at a time, each a checkpoint.

`ctx.tools` is a `Generate`: whatever brings a prompt to an engine, in this process or over HTTP.
"""

from __future__ import annotations

from typing import Any, Protocol

from minserve.northstar.corpus import load_corpus
from minserve.northstar.questions import is_qualified, load_questions, prompt_of
from minserve.request import Identity


class Asked(Protocol):
    """The part of `minserve.jobs.handler.Context` that is used here."""

    job: Any
    tools: Any

    def progress(self, completed: int, total: int) -> None: ...

    def effect(self, key: str, value: Any = None) -> None: ...

    def effect_now(self, key: str, value: Any = None) -> Any: ...

    def recorded(self) -> dict[str, Any]: ...


class Generate(Protocol):
    """Reaches an engine, in batch class, as `identity`."""

    def text(self, prompt: str, identity: Identity, max_tokens: int) -> str:
        """The answer to a rendered prompt."""

    def chat(self, body: dict[str, Any], identity: Identity) -> dict[str, Any]:
        """The answer to the body of a chat completion."""


def write(order: dict[str, Any], ctx: Asked) -> dict[str, Any]:
    """Answer each question of the order from its evidence. A crash costs one section at most:
    those that an earlier attempt has recorded are not written again.

    Raises `JobFailed` for a question that is not there, or that is another's.
    """
    from minserve.jobs.job import JobFailed

    corpus = load_corpus(order["version"]) if "version" in order else load_corpus()
    known = {question.id: question for question in load_questions()}
    identity: Identity = ctx.job.identity
    sections, recorded = [], ctx.recorded()
    for number, question_id in enumerate(order["questions"]):
        question = known.get(question_id)
        whose = None, identity.subject
        if question is None or question.tenant != identity.tenant or question.user not in whose:
            raise JobFailed(f"no question {question_id!r} for you", is_permanent=True)
        section = recorded.get(f"section {number}")
        if section is None:
            text = ctx.tools.text(prompt_of(question, corpus), identity, 200).strip()
            section = {
                "question": question_id,
                "text": text,
                "is_qualified": is_qualified(question, text, corpus.version),
            }
            section = ctx.effect_now(f"section {number}", section)
        sections.append(section)
        ctx.progress(number + 1, len(order["questions"]))
    num_qualified = sum(section["is_qualified"] for section in sections)
    ctx.effect("report", {"num_sections": len(sections), "num_qualified": num_qualified})
    return {"sections": sections, "num_qualified": num_qualified}


def complete_chat(body: dict[str, Any], ctx: Asked) -> dict[str, Any]:
    """One chat completion, as the server would have answered it."""
    return ctx.tools.chat(body, ctx.job.identity)

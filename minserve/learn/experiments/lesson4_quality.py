"""Lesson 4's experiment on what a prompt that is easier to reuse does to the answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from minserve.learn.experiments.lesson4 import Run, serve
from minserve.learn.prefix import LeafFirstCache
from minserve.request import Request, SamplingParams


@dataclass(frozen=True, slots=True)
class Answered:
    """How many of `num_asked` questions were answered rightly, and what was reused for it.

    `wrong` has the others: (question, right answer, the model's answer).
    """

    num_asked: int
    wrong: list[tuple[str, str, str]]
    run: Run

    def row(self, *names: str) -> tuple[str, ...]:
        """Cells under `QUALITY_HEADING`."""
        right = f"{self.num_asked - len(self.wrong)} of {self.num_asked}"
        return *names, f"{self.run.token_hit_rate:.0%}", right


QUALITY_HEADING = ("questions", "prompt", "hit rate (tokens)", "right")


def questions(kind: str, count: int) -> list[Any]:
    """Northstar's checkable questions of one kind, to one tenant."""
    from minserve.northstar.questions import load_questions

    found = [q for q in load_questions() if q.kind == kind]
    return [q for q in found if q.tenant == found[0].tenant][:count]


def as_shipped(asked: Sequence[Any], corpus: Any) -> list[str]:
    """System prompt, history, the question's own evidence, the question."""
    from minserve.northstar.questions import prompt_of

    return [prompt_of(question, corpus) for question in asked]


def one_evidence_for_all(asked: Sequence[Any], corpus: Any) -> list[str]:
    """The evidence of all questions before each: a long prefix that everybody shares."""
    from minserve.northstar.prompts import render_prompt

    lines = corpus.lines(list(dict.fromkeys(i for q in asked for i in q.evidence)))
    return [render_prompt(corpus.system_prompt, lines, q.text) for q in asked]


def without_history(asked: Sequence[Any], corpus: Any) -> list[str]:
    """The last turn only, so that all chats begin alike."""
    from minserve.northstar.prompts import render_prompt

    return [render_prompt(corpus.system_prompt, corpus.lines(q.evidence), q.text) for q in asked]


def answer(
    executor: Any,
    asked: Sequence[Any],
    layout: Callable[[Sequence[Any], Any], list[str]],
    make: Callable[[], Any] = LeafFirstCache,
) -> Answered:
    """Ask the model each question in this layout, greedily, and check its answers."""
    from minserve.northstar.corpus import load_corpus
    from minserve.northstar.questions import is_correct

    corpus = load_corpus()
    encode, decode = executor.tokenizer.encode, executor.tokenizer.decode
    requests = [
        Request(question.id, tuple(encode(prompt)), SamplingParams(max_tokens=24))
        for question, prompt in zip(asked, layout(asked, corpus), strict=True)
    ]
    run = serve(executor, requests, make)
    wrong = []
    for question, output in zip(asked, run.answers, strict=True):
        text = decode(output).replace("<|end|>", "")
        if not is_correct(question, text, corpus.version):
            wrong.append((question.text, question.expected[corpus.version], text))
    return Answered(len(asked), wrong, run)

"""Lesson 5's experiments on fewer tokens for the same answer: what goes in, and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from minserve.engine import Engine
from minserve.northstar.context import (
    Piece,
    Selection,
    StopWhenComplete,
    cap_history,
    compress,
    output_limit,
    select_evidence,
    without_repeats,
)
from minserve.northstar.corpus import Corpus, load_corpus
from minserve.northstar.prompts import as_messages, render_user
from minserve.northstar.questions import Question, is_qualified, load_questions
from minserve.request import Request, SamplingParams

TENANT = "alder"


@dataclass(slots=True)
class Cost:
    """Tokens read and written for some questions, and how many were answered rightly."""

    num_asked: int = 0
    num_read: int = 0
    num_written: int = 0
    num_right: int = 0

    def row(self, name: str) -> tuple[str, ...]:
        """Cells under `COST_HEADING`."""
        right = f"{self.num_right} of {self.num_asked}"
        return name, f"{self.num_read:,}", f"{self.num_written:,}", right


COST_HEADING = ("prompt", "tokens read", "tokens written", "right")


def questions(count: int = 6) -> list[Question]:
    """Policy questions of one tenant, about different products."""
    every = [q for q in load_questions() if q.kind == "policy" and q.tenant == TENANT]
    return every[:: len(every) // count][:count]


def pieces_of(corpus: Corpus) -> list[Piece]:
    """All of the tenant's public facts, as evidence."""
    return [
        Piece(fact.id, fact.text, f"{fact.attribute} of {fact.entity}")
        for fact in corpus.facts.values()
        if fact.tenant == TENANT and fact.user is None
    ]


def everything(question: Question, corpus: Corpus, count: Callable[[str], int]) -> list[dict]:
    """All facts of the tenant, the instructions before each turn, and the whole chat."""
    lines = [piece.text for piece in pieces_of(corpus)]
    instruction = {"role": "system", "content": corpus.system_prompt}
    messages = [instruction]
    for earlier in _chat(corpus):
        messages += [
            {"role": "user", "content": render_user([], earlier.text)},
            {"role": "assistant", "content": earlier.expected[corpus.version]},
            instruction,
        ]
    return [*messages, {"role": "user", "content": render_user(lines, question.text)}]


def chosen(question: Question, corpus: Corpus, count: Callable[[str], int]) -> list[dict]:
    """Evidence that fits 60 tokens, the instructions once, and the latest of the chat."""
    selection = select_evidence(question.text, pieces_of(corpus), 60, count)
    turns = [(render_user([], q.text), q.expected[corpus.version]) for q in _chat(corpus)]
    kept, _ = cap_history(turns, 60, count)
    lines = [piece.text for piece in selection.kept]
    return without_repeats(as_messages(corpus.system_prompt, lines, question.text, kept))


def _chat(corpus: Corpus) -> list[Question]:
    return [q for q in load_questions() if q.kind == "policy" and q.tenant == TENANT][1:5]


Layout = Callable[[Question, Corpus, Callable[[str], int]], list[dict]]


def ask(executor: Any, asked: Sequence[Question], layout: Layout) -> Cost:
    """Put the questions to the model, each in this layout, greedily."""
    corpus, cost = load_corpus(), Cost()
    tokenizer = executor.tokenizer
    for question in asked:
        messages = layout(question, corpus, lambda text: len(tokenizer.encode(text)))
        prompt = tokenizer.encode_chat(messages)
        text, num_written = _generate(executor, prompt, output_limit("policy"))
        cost.num_asked += 1
        cost.num_read += len(prompt)
        cost.num_written += num_written
        cost.num_right += is_qualified(question, text, corpus.version)
    return cost


def outputs(executor: Any, asked: Sequence[Question]) -> list[tuple[str, ...]]:
    """Rows under `COST_HEADING`, for a model that does not stop by itself (its end token is
    ignored): one limit for all tasks, the task's own, and a stop at the first valid answer.
    """
    corpus, tokenizer = load_corpus(), executor.tokenizer
    rows = []
    for name, limit, stops in (
        ("the longest task's limit", output_limit("report", 4), False),
        ("the task's own limit", output_limit("policy"), False),
        ("stop when it is complete", output_limit("policy"), True),
    ):
        cost = Cost()
        for question in asked:
            lines = corpus.lines(question.evidence)

            def is_valid(text: str, lines: list[str] = lines) -> bool:
                return text.strip().removesuffix(".") in [line.removesuffix(".") for line in lines]

            messages = as_messages(corpus.system_prompt, lines, question.text)
            prompt = tokenizer.encode_chat(messages)
            stop = StopWhenComplete(is_valid) if stops else None
            text, written = _generate(executor, prompt, limit, stop, ignore_eos=True)
            first = text.split(".")[0] if stops else text
            cost.num_asked += 1
            cost.num_read += len(prompt)
            cost.num_written += written
            cost.num_right += is_qualified(question, first, corpus.version)
        rows.append(cost.row(name))
    return rows


def _generate(
    executor: Any,
    prompt: Sequence[int],
    max_tokens: int,
    stop: Callable[[str], bool] | None = None,
    ignore_eos: bool = False,
) -> tuple[str, int]:
    engine, decode = Engine(executor), executor.tokenizer.decode
    if stop is not None:
        engine.is_stopped = lambda request: stop(decode(request.output_token_ids))
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos)
    request = Request("one", tuple(prompt), sampling)
    engine.submit(request, 0.0)
    while engine.step(0.0):
        pass
    return decode(request.output_token_ids), len(request.output_token_ids)


def disputed() -> Selection:
    """Evidence that contradicts itself, and more than there is room for."""
    pieces = [
        Piece("terms/2024", "The refund window of Umber Club is 30 days.", "refund", 0.9, 2.0),
        Piece("forum/17", "The refund window of Umber Club is 60 days.", "refund", 0.2, 3.0),
        Piece("terms/2024b", "The refund window of Umber Club is 30 days.", "refund", 0.9, 1.0),
        Piece("help/3", "A refund of Umber Club goes to the card that paid.", "refund card", 0.7),
        Piece("news/9", "The office is closed on Friday.", "office", 0.5),
    ]
    return select_evidence("What is the refund window of Umber Club?", pieces, 20, _words)


def _words(text: str) -> int:
    return len(text.split())


def tool_result() -> tuple[Any, Any, list[str]]:
    """A tool's result, what its schema leaves of it, and the paths that are gone."""
    result = {
        "customer": {"id": "C-17", "name": "Zara Tan", "internal_score": 0.71},
        "invoices": [
            {"number": f"I-{n}", "amount": 20 + n, "audit_log": ["created", "sent", "read"] * 4}
            for n in range(9)
        ],
        "trace_id": "5d0c4f9e-8b4f-4f0e-9d59-2f6c1a7e3b10",
    }
    line: dict[str, Any] = {"properties": {"number": {}, "amount": {}}}
    schema = {
        "properties": {
            "customer": {"properties": {"name": {}}},
            "invoices": {"items": line, "maxItems": 3},
        }
    }
    return (result, *compress(result, schema))

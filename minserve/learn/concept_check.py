"""Ten questions, before the course and after it: what has changed is for the learner to see.

    questions()                                  shows them
    concept_check("before", {1: "b", 2: None})   keeps the answers once all ten are given

Before the course a wrong answer is told the lesson that comes to it, and no more, so that the
second time still asks something. After it, every wrong choice is explained. The first attempt
before and the latest one after are kept in the workspace; nothing is graded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from minserve.errors import ConfigError
from minserve.home import home
from minserve.learn.show import display, show
from minserve.learn.workspace import write_atomically

BEFORE, AFTER = "before", "after"


@dataclass(frozen=True, slots=True)
class Question:
    """`choices` are letter to (what it says, why it is right or wrong)."""

    lesson: int
    text: str
    right: str
    choices: Mapping[str, tuple[str, str]]


def questions() -> None:
    """Show all ten with their choices."""
    lines, html = [], []
    for number, question in enumerate(QUESTIONS, start=1):
        lines.append(f"{number}. {question.text}")
        lines += [f"   {letter}) {said}" for letter, (said, _) in question.choices.items()]
        items = "".join(
            f"<div><b>{letter}</b>&ensp;{escape(said)}</div>"
            for letter, (said, _) in question.choices.items()
        )
        html.append(
            f'<p style="margin:1em 0 .2em">{number}. {escape(question.text)}</p>'
            f'<div style="margin-left:1.5em">{items}</div>'
        )
    display("\n".join(lines), "".join(html))


def concept_check(when: str, answers: Mapping[int, str | None]) -> None:
    """Look at `answers` (question to letter) and keep them, `before` or `after` the course.

    Says what is missing or is no choice, and then keeps nothing. Raises `ConfigError` for another
    `when`.
    """
    if when not in (BEFORE, AFTER):
        raise ConfigError(f"{when!r} is neither", f"say {BEFORE!r} or {AFTER!r}")
    given = {number: str(answers.get(number) or "").strip().lower() for number in NUMBERS}
    if missing := [number for number in NUMBERS if not given[number]]:
        print(f"Not yet, still open: {_listed(missing)}. A guess will do.")
        return
    if odd := [n for n in NUMBERS if given[n] not in QUESTIONS[n - 1].choices]:
        print(f"Question {_listed(odd)}: choose one of the letters shown.")
        return
    wrong = [number for number in NUMBERS if given[number] != QUESTIONS[number - 1].right]
    print(f"{len(NUMBERS) - len(wrong)} of {len(NUMBERS)} right.")
    rows = []
    for number in wrong:
        question = QUESTIONS[number - 1]
        why = question.choices[given[number]][1] if when == AFTER else "you will see"
        rows.append((f"{number}", f"you said {given[number]}", why, f"lesson {question.lesson}"))
    if rows:
        show.table(("question", "", "", "where"), rows)
    _keep(when, given)


def results() -> dict[str, dict[str, Any] | None]:
    """Of `before` and `after`: how many were right, of how many, and the answers; None if none."""
    kept = _read()
    return {when: _score(kept.get(when)) for when in (BEFORE, AFTER)}


def _score(answers: Any) -> dict[str, Any] | None:
    if not isinstance(answers, dict):
        return None
    right = sum(answers.get(str(number)) == QUESTIONS[number - 1].right for number in NUMBERS)
    return {"right": right, "of": len(NUMBERS), "answers": answers}


def _file() -> Path:
    return home() / "concept_check.json"


def _read() -> dict[str, Any]:
    try:
        kept = json.loads(_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _keep(when: str, given: Mapping[int, str]) -> None:
    kept = _read()
    if when == BEFORE and BEFORE in kept:
        print("Your first attempt before the course is kept; this one is not.")
        return
    kept[when] = {str(number): letter for number, letter in given.items()}
    try:
        write_atomically(_file(), json.dumps(kept) + "\n")
    except OSError as error:
        print(f"It could not be kept ({error}).")
    else:
        print("Kept: `minserve progress` shows it.")


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


QUESTIONS: tuple[Question, ...] = (
    Question(
        1,
        "One person is being answered at 50 tokens a second. Seven more join the same batch. "
        "What becomes of the first person's pace?",
        "b",
        {
            "a": (
                "it falls to about an eighth",
                "that would be so if arithmetic were scarce. While writing, the time goes into "
                "reading the weights, and one reading serves all eight.",
            ),
            "b": (
                "it falls a little",
                "the weights are read once a step for everybody; only arithmetic and each one's "
                "own KV cache are added.",
            ),
            "c": (
                "it does not change at all",
                "nearly, but each one's KV cache is read besides, and the arithmetic is not free.",
            ),
        },
    ),
    Question(
        1,
        "After a change the mean time to first token is a third lower, and complaints go up. "
        "What is the likeliest explanation?",
        "c",
        {
            "a": (
                "people complain whenever anything changes",
                "before that, look at the slowest few per cent, by kind of request.",
            ),
            "b": (
                "throughput has fallen",
                "it may well be the same: the mean falls if only the order of service changes.",
            ),
            "c": (
                "most requests became faster, and a few became far slower",
                "the mean counts heads. Whoever is in the tail is not in it.",
            ),
        },
    ),
    Question(
        2,
        "Eight requests form a static batch. One answer is twenty times as long as the others. "
        "What does that cost?",
        "a",
        {
            "a": (
                "seven places stay empty until the long answer is done, while others wait",
                "nobody joins before the last of the batch has ended.",
            ),
            "b": (
                "the seven short answers are held back until the long one is done",
                "each can be handed out as it ends. It is the places that are lost, and the time "
                "of those who wait for them.",
            ),
            "c": (
                "every step takes twenty times as long",
                "a step writes one token for each. The long answer takes more steps, not longer "
                "ones.",
            ),
        },
    ),
    Question(
        2,
        "A prompt of 4,000 tokens arrives while six people read along as their answers are "
        "written. Reading it in chunks of 500 tokens means:",
        "b",
        {
            "a": (
                "its own first token comes earlier",
                "later, if anything: it shares eight steps instead of having one to itself.",
            ),
            "b": (
                "the six see short pauses in place of one long one, and its first token comes "
                "a little later",
                "the work is the same. It is spread, so that nobody waits long in one piece.",
            ),
            "c": (
                "less is computed in all",
                "no token is left out: chunks save no arithmetic.",
            ),
        },
    ),
    Question(
        3,
        "A model has 32 layers, 32 query heads, 8 KV heads and heads of 128 values. How many "
        "values does one token take in the KV cache?",
        "c",
        {
            "a": (
                "32 x 32 x 128",
                "query heads are used and forgotten; and a token has a key and a value.",
            ),
            "b": (
                "2 x 32 x 32 x 128",
                "that counts the query heads. They share the 8 KV heads, four to each.",
            ),
            "c": ("2 x 32 x 8 x 128", "a key and a value, in each layer, for each KV head."),
        },
    ),
    Question(
        3,
        "The memory for the KV cache is full, and one more request arrives. A paged engine that "
        "preempts",
        "a",
        {
            "a": (
                "takes the blocks of one that runs, which is computed again later",
                "nothing is lost but time: its tokens are known, only their keys and values go.",
            ),
            "b": (
                "ends one that runs with an error",
                "its client notices nothing but a pause: what it has written stays.",
            ),
            "c": (
                "gives each a smaller share of the context",
                "a model cannot do without keys that it has to attend to.",
            ),
        },
    ),
    Question(
        4,
        "Every prompt begins with the time of day, then come 2,000 tokens of instructions that "
        "are always the same. How much of the prompt can be found in a prefix cache?",
        "a",
        {
            "a": (
                "nothing, beyond one and the same minute",
                "a block's key depends on all tokens before it: what differs first spoils the "
                "rest.",
            ),
            "b": (
                "the 2,000 tokens",
                "they stand behind something that differs, so their keys and values differ too.",
            ),
            "c": (
                "all but the block with the time in it",
                "blocks are found as a run from the beginning, and the run ends at the first.",
            ),
        },
    ),
    Question(
        5,
        "Two customers' users ask the same question in the same words. When may one get the "
        "answer that was computed for the other?",
        "b",
        {
            "a": (
                "always: the words are the same",
                "the answer rests on who may see what. The words are the least of it.",
            ),
            "b": (
                "only if the server's own policy says that such answers are public",
                "who asks, by the server's records, chooses where to look, before anything is "
                "looked up.",
            ),
            "c": (
                "if the request says that sharing is fine",
                "whoever sends a request can write anything into it.",
            ),
        },
    ),
    Question(
        5,
        "A semantic cache finds a stored question at a cosine of 0.97: 'How do I turn the alarm "
        "on?' Asked was: 'How do I turn the alarm off?'",
        "c",
        {
            "a": (
                "serve it: 0.97 is far above any sensible threshold",
                "the vectors see the same subject. What matters is the one word in which the "
                "questions differ.",
            ),
            "b": (
                "raise the threshold to 0.98",
                "then honest paraphrases are lost, and the next pair of opposites is at 0.985.",
            ),
            "c": (
                "refuse it by a check that compares what the words say",
                "near is not the same: opposites, negations and numbers need a look of their own.",
            ),
        },
    ),
    Question(
        6,
        "A worker's lease on a job ran out while it was working, and another worker has claimed "
        "the job. Now the first one reports its result. What should the queue do?",
        "b",
        {
            "a": (
                "take it: it came first, and the work is done",
                "then two results are written, one after the other, and whoever comes last wins.",
            ),
            "b": (
                "refuse it: its token is no longer the latest",
                "the job may have run twice, but only the holder of the latest token may end it.",
            ),
            "c": (
                "that cannot happen: a lease stops the worker",
                "a lease is a record in a database. Nothing stops a worker that sleeps or swaps.",
            ),
        },
    ),
)
NUMBERS = range(1, len(QUESTIONS) + 1)

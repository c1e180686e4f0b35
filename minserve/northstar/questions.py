"""Northstar's questions and when an answer is right.

Kinds: ``policy`` (public to a tenant), ``account`` (of the user who asks: the same words from two
users have two answers), ``chat`` (a follow-up that only its history makes clear), ``report`` (one
sentence for each of several facts).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from minserve.northstar.corpus import VERSIONS, Corpus, CorpusError, load_corpus, read_json
from minserve.northstar.paths import data_dir
from minserve.northstar.prompts import render_prompt, render_user

KINDS = ("policy", "account", "chat", "report")


@dataclass(frozen=True)
class Question:
    """One checkable question.

    ``facts`` are the ids of what is asked for, in order; ``evidence`` the ids of the lines shown,
    in order; ``history`` the questions before it in the chat, oldest first; ``expected`` and
    ``values`` the right answer and the values in it, by corpus version.
    """

    id: str
    kind: str
    tenant: str
    user: str | None
    text: str
    facts: tuple[str, ...]
    evidence: tuple[str, ...]
    history: tuple[Question, ...]
    expected: Mapping[str, str]
    values: Mapping[str, tuple[str, ...]]


def load_questions(folder: Path | None = None) -> list[Question]:
    """All shipped questions, in file order.

    Raises:
        DataNotFound: A file is missing.
        CorpusError: A file is malformed, or a question names an unknown fact or question.
    """
    folder = folder or data_dir()
    corpora = {version: load_corpus(version, folder) for version in VERSIONS}
    path = folder / "questions.json"
    made: dict[str, Question] = {}
    try:
        for entry in read_json(path)["questions"]:
            earlier = made[entry["follows"]] if entry["follows"] else None
            for corpus in corpora.values():
                corpus.lines(entry["evidence"])
            facts = {v: [c.facts[i] for i in entry["facts"]] for v, c in corpora.items()}
            question = Question(
                id=entry["id"],
                kind=entry["kind"],
                tenant=entry["tenant"],
                user=entry["user"],
                text=entry["text"],
                facts=tuple(entry["facts"]),
                evidence=tuple(entry["evidence"]),
                history=(*earlier.history, earlier) if earlier else (),
                expected={v: " ".join(f.text for f in fs) for v, fs in facts.items()},
                values={v: tuple(f.value for f in fs) for v, fs in facts.items()},
            )
            if question.kind not in KINDS:
                raise CorpusError(f"{path}: question {question.id} has kind {question.kind!r}")
            made[question.id] = question
    except (KeyError, TypeError) as error:
        raise CorpusError(f"{path} is malformed: {error}") from None
    return list(made.values())


def history_of(
    question: Question, corpus: Corpus, with_evidence: bool = True
) -> list[tuple[str, str]]:
    """The earlier turns as ``render_prompt`` takes them, each rightly answered under ``corpus``."""
    return [
        (
            render_user(corpus.lines(q.evidence) if with_evidence else (), q.text),
            q.expected[corpus.version],
        )
        for q in question.history
    ]


def prompt_of(question: Question, corpus: Corpus, with_evidence: bool = True) -> str:
    """The whole prompt; without evidence, no line of any turn is shown (earlier answers are)."""
    evidence = corpus.lines(question.evidence) if with_evidence else []
    history = history_of(question, corpus, with_evidence)
    return render_prompt(corpus.system_prompt, evidence, question.text, history)


def normalise(text: str) -> str:
    """Case, spacing, special tokens and a final full stop do not matter."""
    text = " ".join(text.replace("<|end|>", " ").split()).casefold()
    return text.removesuffix(".").rstrip()


def is_correct(question: Question, answer: str, version: str) -> bool:
    """Whether an answer is exactly right under a corpus version.

    A report is right when all its sentences are there, in order. Any other answer is right as the
    full sentence or as the bare value.

    Raises:
        CorpusError: No such version.
    """
    _check(version)
    given = normalise(answer)
    if given == normalise(question.expected[version]):
        return True
    return len(question.values[version]) == 1 and given == normalise(question.values[version][0])


def share_of_values(question: Question, answer: str, version: str) -> float:
    """Share (0 to 1) of the values asked for that the answer states; 1 makes a report qualified.

    A value counts when it stands in a sentence that names its attribute and ends there.

    Raises:
        CorpusError: No such version.
    """
    _check(version)
    sentences = [normalise(s) for s in (answer + " ").split(". ")]
    wanted = [normalise(s) for s in (question.expected[version] + " ").split(". ") if s.strip()]
    return sum(s in sentences for s in wanted) / len(wanted)


def is_qualified(question: Question, answer: str, version: str) -> bool:
    """Whether the answer serves: a report with every value in it, anything else exactly right."""
    if question.kind == "report":
        return share_of_values(question, answer, version) == 1.0
    return is_correct(question, answer, version)


def with_evidence(question: Question, evidence: tuple[str, ...]) -> Question:
    """The same question with other lines shown: shuffled, cut, stale."""
    return replace(question, evidence=evidence)


def _check(version: str) -> None:
    if version not in VERSIONS:
        raise CorpusError(
            f"unknown corpus version {version!r}", hint=f"choose one of {', '.join(VERSIONS)}"
        )

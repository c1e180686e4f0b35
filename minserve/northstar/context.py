"""Fewer tokens for the same answer: how long it may be, when it is complete, what it rests on.

Each function says what it left out, so that a wrong answer can be told from a cut one: then it is
worth asking again with everything. `shorten` puts them together for a question of Northstar's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minserve.errors import ConfigError
from minserve.northstar.corpus import Corpus, read_json
from minserve.northstar.paths import data_dir
from minserve.northstar.questions import Question, history_of


def output_limit(kind: str, num_facts: int = 1) -> int:
    """Most output tokens of a task: what its facts need, within what its kind may take.

    Raises `ConfigError` for an unknown kind.
    """
    tasks = read_json(data_dir() / "tasks.json")["tasks"]
    if kind not in tasks:
        raise ConfigError(f"there is no task {kind!r}", f"use {', '.join(tasks)}")
    return min(tasks[kind]["max_tokens"], 8 + 40 * max(1, num_facts))


@dataclass(slots=True)
class StopWhenComplete:
    """Told the text so far, says True once it is a whole, valid answer: generation can end there.

    `validate(text)` is asked only where a sentence has just ended, with all of the text.
    """

    validate: Callable[[str], bool]
    _num_asked: int = 0

    def __call__(self, text: str) -> bool:
        ended = text.rstrip()
        if len(ended) <= self._num_asked or not ended.endswith((".", "!", "?")):
            return False
        self._num_asked = len(ended)
        return self.validate(ended) is True


@dataclass(frozen=True, slots=True)
class Piece:
    """A line of evidence. `authority` 0 to 1, `changed_s` when it last changed.

    `claim` names what it speaks of, such as "late fee of Umber Club"; two pieces with one claim
    and different texts contradict each other.
    """

    id: str
    text: str
    claim: str
    authority: float = 0.5
    changed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Selection:
    """Pieces kept, in order of rank; what was left out, and why; claims on which they disagree."""

    kept: tuple[Piece, ...]
    omitted: tuple[tuple[str, str], ...]
    contradictions: tuple[str, ...]

    @property
    def citations(self) -> tuple[str, ...]:
        """The id of each piece kept, in order."""
        return tuple(piece.id for piece in self.kept)

    @property
    def notice(self) -> str:
        """A line for the prompt that names what is missing; empty if nothing is."""
        if not self.omitted:
            return ""
        return f"Not shown: {', '.join(id for id, _ in self.omitted)}."


def select_evidence(
    question: str,
    pieces: Sequence[Piece],
    max_tokens: int,
    count_tokens: Callable[[str], int],
) -> Selection:
    """The most useful evidence that fits into `max_tokens`.

    Ranked by relevance (shared words), then authority, then recency. A repeated text is dropped;
    another piece on a claim that is covered already yields to one on a new claim (diversity,
    Carbonell and Goldstein 1998), unless it contradicts what was kept: then it comes first, for an
    answer from one side of a contradiction looks certain and is not.
    """
    asked = _words(question)
    ranked = sorted(
        pieces,
        key=lambda piece: (
            -len(asked & _words(piece.text)),
            -piece.authority,
            -piece.changed_s,
            piece.id,
        ),
    )
    kept: list[Piece] = []
    omitted: list[tuple[str, str]] = []
    left = max_tokens
    texts: set[str] = set()
    waiting = list(ranked)
    while waiting:
        piece = min(waiting, key=lambda p: (_turn(p, kept), waiting.index(p)))
        waiting.remove(piece)
        size = count_tokens(piece.text)
        if " ".join(piece.text.split()) in texts:
            omitted.append((piece.id, "says what another says"))
        elif not asked & _words(piece.text):
            omitted.append((piece.id, "not about the question"))
        elif size > left:
            omitted.append((piece.id, "no room"))
        else:
            kept.append(piece)
            texts.add(" ".join(piece.text.split()))
            left -= size
    by_claim: dict[str, set[str]] = {}
    for piece in pieces:
        by_claim.setdefault(piece.claim, set()).add(piece.text)
    shown = {piece.claim for piece in kept}
    at_odds = tuple(sorted(c for c, said in by_claim.items() if len(said) > 1 and c in shown))
    return Selection(tuple(kept), tuple(omitted), at_odds)


def _turn(piece: Piece, kept: Sequence[Piece]) -> int:
    """0: contradicts what is kept; 1: on a new claim; 2: repeats a claim."""
    same = [other for other in kept if other.claim == piece.claim]
    if not same:
        return 1
    return 0 if any(other.text != piece.text for other in same) else 2


def without_repeats(messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """The same chat, with an instruction (system message) that was given before left out."""
    seen: set[str] = set()
    kept = []
    for message in messages:
        if message["role"] == "system":
            if message["content"] in seen:
                continue
            seen.add(message["content"])
        kept.append(dict(message))
    return kept


def compress(result: Any, schema: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """A tool's result with only what its JSON schema names, and the paths that were left out.

    Follows `properties` and `items`; `maxItems` cuts a list. What the schema does not describe is
    kept as it is only where it describes nothing (no `properties`).
    """
    left_out: list[str] = []

    def walk(value: Any, schema: Mapping[str, Any], path: str) -> Any:
        if isinstance(value, Mapping) and "properties" in schema:
            known = schema["properties"]
            left_out.extend(f"{path}.{name}".lstrip(".") for name in value if name not in known)
            return {
                name: walk(item, known[name], f"{path}.{name}")
                for name, item in value.items()
                if name in known
            }
        if isinstance(value, list) and "items" in schema:
            most = schema.get("maxItems", len(value))
            if len(value) > most:
                left_out.append(f"{path}[{most}:]".lstrip("."))
            return [walk(v, schema["items"], f"{path}[{n}]") for n, v in enumerate(value[:most])]
        return value

    return walk(result, schema, ""), left_out


def cap_history(
    turns: Sequence[tuple[str, str]], max_tokens: int, count_tokens: Callable[[str], int]
) -> tuple[list[tuple[str, str]], int]:
    """The latest (asked, answered) turns within `max_tokens`, oldest first, and how many are gone.

    Only whole turns, and no gap: what is kept reads as the chat did.
    """
    kept: list[tuple[str, str]] = []
    left = max_tokens
    for asked, answered in reversed(turns):
        left -= count_tokens(asked) + count_tokens(answered)
        if left < 0:
            break
        kept.append((asked, answered))
    return kept[::-1], len(turns) - len(kept)


EVIDENCE_TOKENS, HISTORY_TOKENS = 48, 160
"""What the evidence of one fact, and all earlier turns, may take of a prompt."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a prompt is made of, and what was left out of it.

    `selection` is of the evidence; `num_turns_gone` counts earlier turns of the chat.
    """

    evidence: tuple[str, ...]
    history: tuple[tuple[str, str], ...]
    max_tokens: int
    selection: Selection
    num_turns_gone: int = 0

    @property
    def is_cut(self) -> bool:
        """Whether an answer might be another if everything were shown."""
        return bool(self.selection.omitted or self.num_turns_gone)


def shorten(
    question: Question, corpus: Corpus, text: str, count_tokens: Callable[[str], int]
) -> Context:
    """The context of a question asked in the words `text`: a budget for evidence and history.

    Evidence is ranked by the words of the chat's questions, since a follow-up names only what is
    new, and shown in its first order. It knows nothing of what the right answer is.
    """
    num_facts = text.count(",") + 1 if question.kind == "report" else 1
    facts = [corpus.facts[id] for id in question.evidence]
    pieces = [Piece(f.id, f.text, f"{f.attribute} of {f.entity}") for f in facts]
    said = " ".join([*(earlier.text for earlier in question.history), text])
    selection = select_evidence(said, pieces, EVIDENCE_TOKENS * num_facts, count_tokens)
    turns, num_gone = cap_history(history_of(question, corpus), HISTORY_TOKENS, count_tokens)
    shown = set(selection.citations)
    return Context(
        tuple(piece.text for piece in pieces if piece.id in shown),
        tuple(turns),
        output_limit(question.kind, num_facts),
        selection,
        num_gone,
    )


def _words(text: str) -> set[str]:
    return set(_clean(text.casefold().split())) - _COMMON


def _clean(words: Iterable[str]) -> Iterable[str]:
    return (word.strip(".,?!:;") for word in words)


_COMMON_WORDS = "a an the of is are what for to my your under please tell me i need know"
_COMMON = frozenset(_COMMON_WORDS.split())

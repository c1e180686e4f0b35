"""One versioned event log: every trace, picture, lab and replay reads it.

Events are facts that have happened, in order. They name requests, never tenants or texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from minserve.errors import DataNotFound

VERSION = 1


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at `time_s` seconds on the engine's clock."""

    time_s: float
    kind: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class RequestEvent(Event):
    """Something that happened to one request."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Submitted(RequestEvent):
    """A request was accepted and waits."""

    num_prompt_tokens: int
    workload_class: str
    kind: ClassVar[str] = "submitted"


@dataclass(frozen=True, slots=True)
class StepStarted(Event):
    """`rows` are (request id, tokens computed, tokens in context) of each row of the step."""

    step: int
    rows: tuple[tuple[str, int, int], ...]
    num_waiting: int
    blocks_free: int
    blocks_used: int
    blocks_cached: int
    kind: ClassVar[str] = "step_started"


@dataclass(frozen=True, slots=True)
class StepEnded(Event):
    """The step's tokens have been taken in."""

    step: int
    kind: ClassVar[str] = "step_ended"


@dataclass(frozen=True, slots=True)
class Admitted(RequestEvent):
    """A waiting request got its first blocks; `num_cached_tokens` of it need no computing."""

    num_cached_tokens: int
    kind: ClassVar[str] = "admitted"


@dataclass(frozen=True, slots=True)
class Preempted(RequestEvent):
    """A running request gave its blocks back and waits again; it keeps its output."""

    kind: ClassVar[str] = "preempted"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """What the model thought of one token: its log-probability, and (token id, log-probability)
    of the likeliest, in falling order.
    """

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class TokensProduced(RequestEvent):
    """The next output tokens of a request, in order, with their `logprobs` if it asked for them.

    Of `num_draft_tokens` that speculation proposed, all but the last of these tokens were right.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    num_draft_tokens: int = 0
    kind: ClassVar[str] = "tokens"


@dataclass(frozen=True, slots=True)
class Finished(RequestEvent):
    """The one terminal event of a request: nothing about it follows."""

    reason: str
    num_output_tokens: int
    error: str | None = None
    kind: ClassVar[str] = "finished"


KINDS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (Submitted, StepStarted, StepEnded, Admitted, Preempted, TokensProduced, Finished)
}


def to_json(event: Event) -> str:
    """One line of JSON, without the line end."""
    return json.dumps({"v": VERSION, "kind": event.kind, **asdict(event)}, separators=(",", ":"))


def from_json(line: str) -> Event:
    """The event that `to_json` wrote. Raises `DataNotFound` for a line that is none."""
    try:
        fields: dict[str, Any] = json.loads(line)
        if fields.pop("v") != VERSION:
            raise ValueError("another version")
        cls = KINDS[fields.pop("kind")]
        if "logprobs" in fields:
            each = fields["logprobs"]
            fields["logprobs"] = [TokenLogprob(e["logprob"], _frozen(e["top"])) for e in each]
        return cls(**{name: _frozen(value) for name, value in fields.items()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataNotFound(
            f"not a version {VERSION} event: {line[:80]!r} ({error})", "record the log again"
        ) from None


class EventLog:
    """Keeps events in order and passes each on to its listeners as it happens.

    With `keep=False` nothing is stored, so a long run does not grow.
    """

    def __init__(self, keep: bool = True) -> None:
        self.events: list[Event] = []
        self._keep = keep
        self._listeners: list[Callable[[Event], None]] = []

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Call `listener(event)` for every event from now on."""
        self._listeners.append(listener)

    def add(self, event: Event) -> None:
        if self._keep:
            self.events.append(event)
        for listener in self._listeners:
            listener(event)

    def save(self, path: Path) -> None:
        """Write JSON lines."""
        path.write_text("".join(to_json(event) + "\n" for event in self.events), "utf-8")


def load(lines: Iterable[str]) -> list[Event]:
    """The events of JSON lines, in order."""
    return [from_json(line) for line in lines if line.strip()]


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value

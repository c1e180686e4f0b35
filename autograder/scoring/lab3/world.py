"""Lab 3's world: the pool, the traffic, and a model of what the engine should do.

`World` owns the block pool and plays the traffic; the learner's engine sees the pool through
a proxy, so leaks and double releases are observed here, never reported by the learner. A small
model says after every call how many blocks should be free, who is in the step, and which events
are due.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from autograder.harness import ChildMisbehaved, Raised, RemoteError
from autograder.scoring.base import Finding, Session
from minserve.errors import BlockError, OutOfBlocks
from minserve.kv.blocks import BlockPool

CLASS = "CancellableEngine"
POOL = {
    "name": "pool",
    "methods": {"allocate": ["num_tokens"], "release": ["table"], "blocks_for": ["num_tokens"]},
    "properties": ["num_free", "num_used", "num_blocks", "block_size"],
    "emptied": {"release": 0},
}
EMIT = {
    "name": "emit",
    "methods": {"__call__": ["kind", "request_id", "value"]},
    "properties": [],
    "emptied": {},
}


@dataclass
class Ref:
    """What the model knows of a request."""

    id: str
    prompt: int
    max_tokens: int
    num_blocks: int
    stage: str = "waiting"  # waiting, running or ended
    computed: int = 0
    output: int = 0

    @property
    def num_left(self) -> int:
        return self.prompt + self.output - self.computed


@dataclass
class World:
    """A pool, an engine under test and the model that it is compared with."""

    session: Session
    num_blocks: int
    block_size: int
    found: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool = BlockPool(self.num_blocks, self.block_size)
        self.refs: dict[str, Ref] = {}
        self.step: dict[str, int] | None = None  # the model's rows of the step in flight
        self.leaving: set[str] = set()  # cancelled in flight, blocks due at finish
        self.events: list[tuple[str, str, Any]] = []
        self.drift = 0  # blocks free beyond what the model says
        self.when = ""
        self.session.new(CLASS, [{"remote": POOL}, {"remote": EMIT}], self.serve)

    # -- what the learner's code may ask

    def serve(self, name: str, method: str, args: list[Any]) -> Any:
        if name == "emit" and method == "__call__" and len(args) == 3:
            self.events.append(tuple(args))
            return None
        if name == "pool" and method in POOL["properties"] and not args:
            return getattr(self.pool, method)
        if name == "pool" and method in POOL["methods"] and len(args) == 1:
            return self._pool(method, args[0])
        raise ChildMisbehaved(f"asked for {name[:40]}.{method[:40]} with {len(args)} arguments")

    def _pool(self, method: str, arg: Any) -> Any:
        if method == "release":
            if type(arg) is not list or any(type(block) is not int for block in arg):
                raise RemoteError("TypeError", "release takes a list of block ids")
        elif type(arg) is not int or not 0 <= arg <= 10**9:
            raise RemoteError("TypeError", f"{method} takes a number of tokens")
        try:
            return getattr(self.pool, method)(arg)
        except BlockError as error:
            self.find("released_twice")
            raise RemoteError("BlockError", str(error)) from None
        except OutOfBlocks as error:
            raise RemoteError("OutOfBlocks", str(error)) from None

    # -- the traffic

    def submit(self, request_id: str, prompt: int, max_tokens: int) -> None:
        num_blocks = self.pool.blocks_for(prompt + max_tokens)
        self.refs[request_id] = Ref(request_id, prompt, max_tokens, num_blocks)
        self.call("submit", request_id, prompt, max_tokens)

    def begin(self, budget: int) -> None:
        """Start a step: the model and the engine should plan the same rows."""
        self._admit()
        expected: dict[str, int] = {}
        for ref in self.running():
            num_tokens = min(ref.num_left, budget)
            if num_tokens > 0:
                budget -= num_tokens
                expected[ref.id] = num_tokens
        rows = self._rows(self.call("begin_step", budget + sum(expected.values())))
        # A row that the engine lacks is found here; the model then goes on as the engine does.
        self.step = {name: n for name, n in expected.items() if name in rows}
        for request_id in expected.keys() - rows.keys():
            if self.refs[request_id].computed:
                self.find("cut_off")
            self.find("service")
        if expected and not rows:
            self.find("idle")
        for request_id in rows.keys() - expected.keys():
            ref = self.refs.get(request_id)
            is_ended = ref is not None and ref.stage == "ended"
            self.find(("token_after_end" if ref.computed else "ghost") if is_ended else "service")
        if any(rows[name][0] != expected[name] for name in rows.keys() & expected.keys()):
            self.find("service")
        self._check_owners(rows)
        self._check_free()

    def finish(self) -> None:
        """End the step: every live row that completes its tokens gets the next one."""
        step, self.step = self.step or {}, None
        tokens, due = {}, []
        for request_id, num_tokens in step.items():
            ref = self.refs[request_id]
            if ref.num_left == num_tokens:
                tokens[request_id] = 100 * len(self.events) + ref.output
            if ref.stage == "ended":
                self.leaving.discard(request_id)
                continue
            ref.computed += num_tokens
            if request_id in tokens:
                ref.output += 1
                due.append(("token", request_id, tokens[request_id]))
                if ref.output == ref.max_tokens:
                    ref.stage = "ended"
                    due.append(("finished", request_id, "length"))
        first = len(self.events)
        self.call("finish_step", tokens)
        self._check_events(self.events[first:], due)
        self._check_free()

    def cancel(self, request_id: str, when: str = "") -> None:
        """Cancel, live or not, and say in words when it happened."""
        ref = self.refs.get(request_id)
        is_live = ref is not None and ref.stage != "ended"
        self.when = when or self._stage(ref)
        due = [("finished", request_id, "cancelled")] if is_live else []
        if is_live:
            was_waiting, ref.stage = ref.stage == "waiting", "ended"
            if self.step is not None and request_id in self.step:
                self.leaving.add(request_id)
        first = len(self.events)
        answer = self.call("cancel", request_id)
        if answer is not is_live:
            self.find("wrong_answer")
            if is_live and was_waiting:
                self.find("ghost")
        self._check_events(self.events[first:], due)
        self._check_free()

    def drain(self, budget: int = 64) -> None:
        """Run until everybody has ended."""
        for _ in range(100):
            if not any(ref.stage != "ended" for ref in self.refs.values()):
                return
            self.begin(budget)
            self.finish()

    def advance(self, request_id: str, output: int, budget: int = 64) -> None:
        """Whole steps until the model has given a request `output` tokens."""
        for _ in range(100):
            if self.refs[request_id].output >= output:
                return
            self.begin(budget)
            self.finish()

    # -- the comparison

    def call(self, method: str, *args: Any) -> Any:
        try:
            return self.session.call(method, list(args), self.serve)
        except Raised as error:
            others = [ref for ref in self.running() if ref.computed]
            if method != "cancel" and others:
                self.find("cut_off")
            self.found.append(Finding("raised", f"{error}, in {method}, {error.place}"))
            raise

    def find(self, kind: str) -> None:
        self.found.append(Finding(kind, self.when))

    def running(self) -> list[Ref]:
        return [ref for ref in self.refs.values() if ref.stage == "running"]

    def expected_free(self) -> int:
        owners = {*self.leaving, *(ref.id for ref in self.running())}
        return self.num_blocks - sum(self.refs[name].num_blocks for name in owners)

    def _admit(self) -> None:
        for ref in self.refs.values():  # in order of arrival; the first who does not fit stops it
            if ref.stage == "waiting":
                if ref.num_blocks > self.expected_free():
                    return
                ref.stage = "running"

    def _rows(self, told: Any) -> dict[str, tuple[int, list[int]]]:
        """The engine's rows, if they are what the contract says; else none, and a finding."""
        rows = {}
        for row in told if type(told) is list else [None]:
            is_row = type(row) is list and len(row) == 3 and type(row[2]) is list
            if not is_row or type(row[0]) is not str or type(row[1]) is not int or row[0] in rows:
                self.find("service")
                return {}
            rows[row[0]] = (row[1], row[2])
        return rows

    def _check_owners(self, rows: dict[str, tuple[int, list[int]]]) -> None:
        seen: set[int] = set()
        for request_id, (_, blocks) in rows.items():
            ref = self.refs.get(request_id)
            are_valid = all(
                type(block) is int
                and 0 <= block < self.num_blocks
                and self.pool.num_references(block) == 1
                and block not in seen
                for block in blocks
            )
            seen.update(block for block in blocks if type(block) is int)
            if not are_valid or (ref is not None and len(set(blocks)) != ref.num_blocks):
                self.find("stolen")

    def _check_free(self) -> None:
        """NOTE: only changes are findings, so that one leak is not counted at every call."""
        drift = self.pool.num_free - self.expected_free()
        if drift < min(self.drift, 0):
            self.find("stranded")
        elif drift > max(self.drift, 0):
            self.find("released_early" if self.leaving else "released_twice")
        self.drift = drift

    def _check_events(self, told: list[tuple[Any, ...]], due: list[tuple[Any, ...]]) -> None:
        extra = [event for event in told if event[0] in ("token", "finished")]
        for event in due:
            match = next((other for other in extra if same(event, other)), None)
            if match is not None:
                extra.remove(match)
            else:
                self.find("cut_off" if event[0] == "token" else "ends")
        for event in extra:
            ref = self.refs.get(event[1]) if type(event[1]) is str else None
            if event[0] == "finished":
                self.find("ends")
            else:
                is_ended = ref is not None and ref.stage == "ended"
                self.find("token_after_end" if is_ended else "service")

    def _stage(self, ref: Ref | None) -> str:
        if ref is None:
            return "an unknown request was cancelled"
        where = ""
        if self.step is not None and ref.stage == "running":
            is_in_it = ref.id in self.step
            where = " in the step in flight" if is_in_it else " while others' step was in flight"
        if ref.stage == "waiting":
            return "cancelled while it waited"
        if ref.stage == "ended":
            return "cancelled again, after its end"
        stage = "its answer was written" if ref.output else "its prompt was read"
        return f"cancelled while {stage}{where}"


def same(event: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Equal, and of the same plain types."""
    return event == other and [type(x) for x in event] == [type(x) for x in other]

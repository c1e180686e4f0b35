"""Lab 3: the cancellation leak.

`World` owns the block pool and plays the traffic; the learner's engine sees the pool through
a proxy, so leaks and double releases are observed here, never reported by the learner. A small
model says after every call how many blocks should be free, who is in the step, and which events
are due. Scenarios are written with drawn values; each counts only the kinds that its cell scores.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from autograder.harness import ChildMisbehaved, Raised, RemoteError
from autograder.scoring import lab3_subjects
from autograder.scoring.base import Advice, Cell, CellScore, Finding, Lab, Open, Session
from minserve.errors import BlockError, OutOfBlocks
from minserve.kv.blocks import BlockPool

CLASS = "CancellableEngine"
TOKENS = 96  # that the pool holds, whatever its block size
ROUNDS = 3  # times each scenario is played, with other values
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

ADVICE = {
    "stranded": Advice(
        "a request was cancelled and its blocks never came back to the pool",
        "every block that is held has an owner that still lives",
        "what `cancel` and `finish_step` do with `request.blocks` at that stage",
    ),
    "released_early": Advice(
        "blocks went back to the pool while the step in flight still computed on them",
        "from begin_step to finish_step the rows of a step keep their blocks",
        "`cancel`, when the request is part of `self.step`: only mark it",
    ),
    "released_twice": Advice(
        "blocks were given back that their request no longer owned",
        "each block is released exactly once, by whoever ends its ownership",
        "every call of `pool.release`: can two of them see the same blocks?",
    ),
    "capacity": Advice(
        "after a storm of cancellations the pool was not whole, or a newcomer was not admitted",
        "when nobody runs, every block is free",
        "the picture of the incident: at which stage do its two lines part?",
    ),
    "stolen": Advice(
        "a running request computed on blocks that were free or somebody else's",
        "a block in use has exactly one owner",
        "a release that comes late: whose blocks are these ids by then?",
    ),
    "idle": Advice(
        "nobody was computed although a request could run",
        "whoever fits is admitted and computed",
        "`begin_step`: what it returns, and whether requests are ever admitted",
    ),
    "cut_off": Advice(
        "somebody who had cancelled nothing lost a token or never finished",
        "cancelling one request changes nothing for the others",
        "what an early return or an exception in the middle of a step leaves undone",
    ),
    "ghost": Advice(
        "a request that was cancelled while it waited ran all the same, or could not be cancelled",
        "a cancelled request is never admitted",
        "`self.waiting` in `cancel`",
    ),
    "wrong_answer": Advice(
        "`cancel` did not return True for a live request, or False for an unknown or ended one",
        "only the first cancellation of a live request does something, and says so",
        "the first lines and the last line of `cancel`",
    ),
    "service": Advice(
        "requests that nobody cancelled are no longer admitted and computed as before",
        "first come, first served, within the budget; all who fit run together",
        "`begin_step` and `finish_step`, compared with the version that you were given",
    ),
    "ends": Advice(
        "a request did not get exactly one terminal event with the right reason",
        "one terminal event per request",
        "every place that emits 'finished'",
    ),
    "token_after_end": Advice(
        "a request was computed or got a token after its terminal event",
        "nothing follows the terminal event",
        "the cancelled rows in `finish_step`",
    ),
    "raised": Advice(
        "your code raised an exception",
        "no public method raises, whatever was cancelled before",
        "the line named here",
    ),
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


# -- scenarios: each plays one story with drawn values


def returned_from_prefill(world: World, rng: random.Random) -> None:
    world.submit("a", prompt := rng.randint(9, 24), rng.randint(2, 6))
    for _ in range(rng.randint(1, 2)):
        world.begin(rng.randint(2, prompt // 3))
        world.finish()
    world.cancel("a")


def returned_from_decode(world: World, rng: random.Random) -> None:
    world.submit("a", rng.randint(3, 12), rng.randint(4, 9))
    world.submit("b", rng.randint(3, 12), rng.randint(6, 9))
    world.advance("a", rng.randint(1, 3))
    world.cancel("a")
    world.begin(64)
    world.finish()
    world.cancel("b")


def returned_beside_a_step(world: World, rng: random.Random) -> None:
    world.submit("a", prompt := rng.randint(8, 20), 3)
    world.submit("b", rng.randint(2, 9), rng.randint(2, 6))
    world.begin(prompt)
    world.cancel("b")
    world.finish()


def cancelled_while_waiting(world: World, rng: random.Random) -> None:
    world.submit("a", TOKENS - 3, 3)
    world.submit("b", rng.randint(2, 9), rng.randint(2, 6))
    world.submit("c", rng.randint(2, 9), rng.randint(2, 6))
    world.cancel("b")
    world.begin(256)
    world.cancel("c")
    world.finish()
    world.drain(256)
    world.begin(64)
    world.finish()


def in_flight(world: World, rng: random.Random) -> None:
    world.submit("a", rng.randint(3, 12), rng.randint(4, 9))
    world.advance("a", rng.randint(1, 2))
    world.begin(64)
    world.cancel("a")
    world.finish()
    world.submit("b", rng.randint(3, 12), rng.randint(2, 4))
    world.drain()


def in_flight_prefill(world: World, rng: random.Random) -> None:
    world.submit("a", rng.randint(9, 24), rng.randint(2, 6))
    world.begin(rng.randint(2, 8))
    world.cancel("a")
    world.finish()
    world.begin(64)
    world.finish()


def in_the_step_that_ends_it(world: World, rng: random.Random) -> None:
    world.submit("a", rng.randint(3, 12), last := rng.randint(2, 5))
    world.advance("a", last - 1)
    world.begin(64)
    world.cancel("a")
    world.finish()
    world.cancel("a")
    world.begin(64)
    world.finish()


def twice_in_flight(world: World, rng: random.Random) -> None:
    world.submit("a", rng.randint(3, 12), rng.randint(4, 9))
    world.advance("a", 1)
    world.begin(64)
    world.cancel("a")
    world.cancel("a", "cancelled twice in one step")
    world.finish()
    world.cancel("a")


def again_after_cancel(world: World, rng: random.Random) -> None:
    """The blocks have a new owner when the old one is cancelled again."""
    world.submit("a", TOKENS - 2, 2)
    world.submit("b", TOKENS - 3, 3)
    world.advance("a", 1, 256)
    world.cancel("a")
    again(world)


def again_after_end(world: World, rng: random.Random) -> None:
    """The blocks have a new owner when the old one, which ended by itself, is cancelled."""
    last = rng.randint(2, 4)
    world.submit("a", TOKENS - last, last)
    world.submit("b", TOKENS - 3, 3)
    world.advance("a", last, 256)
    again(world)


def again(world: World) -> None:
    world.begin(256)
    world.cancel("a")
    world.finish()
    world.cancel("a")
    world.drain(256)


def answers(world: World, rng: random.Random) -> None:
    world.cancel("nobody")
    world.submit("a", rng.randint(3, 12), 2)
    world.submit("b", rng.randint(3, 12), 5)
    world.advance("a", 2)
    world.cancel("a")
    world.cancel("b")
    world.cancel("b")


def storm(world: World, rng: random.Random) -> None:
    """Many come, many leave at any moment; then everybody leaves and somebody big arrives."""
    names: list[str] = []

    def leave(chance: float) -> None:
        live = [name for name in names if world.refs[name].stage != "ended"]
        if names and rng.random() < chance:
            world.cancel(rng.choice(live if live and rng.random() < 0.8 else names))

    for _ in range(30):
        for _ in range(rng.randint(0, 2)):
            names.append(f"r{len(names)}")
            world.submit(names[-1], rng.randint(2, 30), rng.randint(1, 6))
        world.begin(rng.choice((4, 16, 64)))
        leave(0.7)
        world.finish()
        leave(0.4)
    for name in names:
        world.cancel(name)
    world.when = "after the storm"
    if world.pool.num_free != world.num_blocks:
        world.find("capacity")
    world.submit("newcomer", TOKENS - 1, 1)
    world.begin(10_000)
    if "newcomer" not in world.step:
        world.find("capacity")
    world.finish()


def service(world: World, rng: random.Random) -> None:
    """Nobody cancels: everything as before."""
    for index in range(6):
        world.submit(f"r{index}", rng.randint(2, 30), rng.randint(1, 6))
        world.begin(rng.randint(3, 20))
        world.finish()
    world.drain(rng.randint(8, 30))
    if world.pool.num_free != world.num_blocks:
        world.find("service")


def neighbours(world: World, rng: random.Random) -> None:
    """A victim leaves in flight, beside a bystander; the next takes its blocks at once."""
    half = TOKENS // 2
    world.submit("bystander", half - 6, 6)
    world.submit("victim", TOKENS - half - 5, 5)
    world.submit("next", TOKENS - half - 4, 4)
    world.advance("victim", rng.randint(1, 2), 256)
    world.begin(256)
    world.cancel("victim")
    world.finish()
    world.begin(256)
    world.finish()
    world.cancel("victim")
    world.drain(256)
    bystander_got_all(world)


def late_cancels(world: World, rng: random.Random) -> None:
    """The tab is closed just after the answer has ended, and again, while others run."""
    half = TOKENS // 2
    world.submit("first", half - 2, 2)
    world.submit("bystander", TOKENS - half - 6, 6)
    world.submit("next", half - 4, 4)
    world.advance("first", 2, 256)
    world.begin(256)
    world.cancel("first")
    world.finish()
    world.begin(256)
    world.cancel("first")
    world.finish()
    world.drain(256)
    bystander_got_all(world)


def bystander_got_all(world: World) -> None:
    bystander = world.refs["bystander"]
    if bystander.output < bystander.max_tokens:
        world.find("cut_off")


def one_end_each(world: World, rng: random.Random) -> None:
    world.submit("a", rng.randint(3, 12), last := rng.randint(2, 5))
    world.submit("b", rng.randint(3, 12), last + 2)
    world.submit("c", rng.randint(3, 12), last + 4)
    world.advance("a", last - 1)
    world.begin(64)
    world.cancel("a")
    world.finish()
    world.cancel("b")
    world.begin(64)
    world.finish()
    world.begin(64)
    world.cancel("c")
    world.finish()
    world.begin(64)
    world.finish()


Play = Callable[[World, random.Random], None]


@dataclass(frozen=True)
class Story:
    """A scenario and the kinds of finding that count in it."""

    play: Play
    counts: tuple[str, ...]
    is_gate: bool = False


STORIES: dict[str, tuple[Story, ...]] = {
    "lab3-returned": (
        Story(returned_from_prefill, ("stranded", "idle", "stolen")),
        Story(returned_from_decode, ("stranded", "idle", "stolen")),
        Story(returned_beside_a_step, ("stranded", "idle", "stolen")),
        Story(cancelled_while_waiting, ("ghost",), is_gate=True),
    ),
    "lab3-exact": (
        Story(in_flight, ("stranded", "released_early", "released_twice")),
        Story(in_flight_prefill, ("stranded", "released_early", "released_twice")),
        Story(in_the_step_that_ends_it, ("stranded", "released_early", "released_twice")),
        Story(twice_in_flight, ("stranded", "released_early", "released_twice")),
        Story(again_after_cancel, ("released_early", "released_twice")),
        Story(again_after_end, ("released_early", "released_twice")),
        Story(answers, ("wrong_answer",), is_gate=True),
    ),
    "lab3-storm": (
        Story(storm, ("capacity", "stolen")),
        Story(service, ("service",), is_gate=True),
    ),
    "lab3-others": (
        Story(neighbours, ("stolen", "cut_off")),
        Story(late_cancels, ("stolen", "cut_off")),
        Story(one_end_each, ("ends", "token_after_end"), is_gate=True),
    ),
}


def play_cell(scored: CellScore, open_child: Open, rng: random.Random) -> None:
    """Play a cell's stories in one child and note what was broken, each kind once."""
    with open_child() as session:
        for story in STORIES[scored.grade_id]:
            for _ in range(ROUNDS):
                size = rng.choice((2, 4, 8))
                world_of = lambda size=size: World(session, TOKENS // size, size)  # noqa: E731
                for finding in findings(world_of, story.play, rng):
                    if finding.kind in story.counts or finding.kind == "raised":
                        note(scored, finding, story.is_gate)


def findings(make: Callable[[], World], play: Play, rng: random.Random) -> list[Finding]:
    """Play one story to its end, or to where the learner's code raises."""
    try:
        world = make()
    except Raised as error:
        return [Finding("raised", f"{error}, in __init__, {error.place}")]
    with contextlib.suppress(Raised):  # noted by World.call
        play(world, rng)
    return world.found


def note(scored: CellScore, finding: Finding, is_gate: bool) -> None:
    broken = scored.gates if is_gate else scored.failed
    if finding.kind not in broken:
        broken.append(finding.kind)
        scored.feedback.append(ADVICE[finding.kind].text(finding.when))


# -- the learner's regression test


def play_regression(scored: CellScore, open_child: Open, rng: random.Random) -> None:
    """The learner's test meets right engines, then faulty ones, all in the grader's process."""
    for _, subject in lab3_subjects.right():
        error = failure(open_child, subject)
        if error is not None:
            scored.failed.append("rejects a right engine")
            scored.feedback.append(
                f"Seen: your test fails on a correct engine: {error}, {error.place}.\n"
                "  Rule: a test relies only on what the contract promises.\n"
                "  Look at: every assert: does the text above the engine promise this?"
            )
            return
    for name, (subject, words) in lab3_subjects.faulty().items():
        if failure(open_child, subject) is None:
            scored.failed.append(f"misses {name}")
            scored.costs[f"misses {name}"] = 1.0
            scored.feedback.append(
                f"Seen: your test passes on an engine that {words}.\n"
                "  Rule: a test is worth what it can catch.\n"
                "  Look at: which stage does your test cancel in, and what is free then?"
            )


def failure(open_child: Open, subject: type) -> Raised | None:
    """How the learner's test fails on `subject`; None if it passes.

    NOTE: a fresh child each time: a test that counts how often it was called would pass else.
    """
    host = lab3_subjects.Host(subject)
    with open_child() as session:
        try:
            session.test("test_cancellation", [{"remote": lab3_subjects.MAKE}], host.serve)
        except Raised as error:
            return error
    return None


LAB = Lab(
    name="lab3_cancellation_leak",
    variants=("a", "b", "c"),
    cells=(
        Cell("lab3-returned", 4.0, "blocks of a cancelled request come back", play_cell),
        Cell("lab3-exact", 4.0, "a step keeps its blocks; each goes back once", play_cell),
        Cell("lab3-storm", 3.0, "after a storm all capacity is back", play_cell),
        Cell("lab3-others", 3.0, "nobody else notices", play_cell),
        Cell("lab3-regression-check", 3.0, "your regression test", play_regression),
    ),
    setup=("lab3-setup",),
    solutions=("lab3-engine", "lab3-regression"),
    required=(CLASS,),
    manual={"lab3-explanation": 3.0},
    kinds={
        **{
            cell: tuple(sorted({kind for story in stories for kind in story.counts}))
            for cell, stories in STORIES.items()
        },
        "lab3-regression-check": (
            *(f"misses {name}" for name in lab3_subjects.FAULTY),
            "rejects a right engine",
        ),
    },
)

"""Lab 2's world: requests over a pool of blocks, on a virtual clock, planned by the learner's code.

`World` keeps all state; the learner's planner sees views of it and returns a plan. A small model
of the contract plans the same step, and what differs is named. The world then goes on with the
learner's plan, so that one fault does not make all later steps look wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from autograder.harness import Raised, refuse
from autograder.scoring.base import Finding, Session

CLASS = "StepPlanner"
BASE_S, TOKEN_S = 0.002, 0.0002  # what a step takes, and each token in it
GAP_SHARE = 1.5  # of a full step: the longest pause within an answer
MAX_STEPS = 60  # until a handful of short prompts are read


@dataclass(eq=False)
class Ref:
    """One request."""

    id: str
    prompt: int
    max_tokens: int
    number: int  # in order of arrival
    is_running: bool = False
    is_answering: bool = False
    computed: int = 0
    output: int = 0
    num_blocks: int = 0
    num_bypasses: int = 0
    token_s: float | None = None  # when its last token came, if nothing put it out since

    @property
    def num_left(self) -> int:
        return self.prompt + self.output - self.computed

    @property
    def is_done(self) -> bool:
        return self.output == self.max_tokens


Rows = dict[str, int]


@dataclass
class World:
    """An engine without a device; see the module."""

    session: Session
    token_budget: int
    max_running: int
    max_bypasses: int
    block_size: int = 16
    num_blocks: int = 100_000
    found: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.refs: dict[str, Ref] = {}
        self.running: list[Ref] = []  # in order of admission
        self.now_s = 0.0
        self.when = ""
        self.session.new(CLASS, [self.token_budget, self.max_running, self.max_bypasses], refuse)

    # -- the traffic

    def submit(self, request_id: str, prompt: int, max_tokens: int) -> Ref:
        ref = self.refs[request_id] = Ref(request_id, prompt, max_tokens, len(self.refs))
        return ref

    def answering(self, count: int, max_tokens: int, prompt: int = 2) -> None:
        """So many short requests, up to where all of them answer."""
        for index in range(count):
            self.submit(f"a{index}", prompt, max_tokens + index % 4)
        for _ in range(MAX_STEPS):
            if all(ref.is_answering for ref in self.refs.values()):
                return
            self.step()
        self.find("stuck")

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def drain(self, num_steps: int) -> None:
        """Everybody must have ended within so many steps."""
        for _ in range(num_steps):
            if all(ref.is_done for ref in self.refs.values()):
                return
            self.step()
        if not all(ref.is_done for ref in self.refs.values()):
            self.find("stuck")

    def step(self) -> None:
        """Ask for a plan, compare it, carry it out."""
        waiting = self.waiting()
        views = [[self.view(ref) for ref in refs] for refs in (self.running, waiting)]
        try:
            told = self.session.call("plan", [*views, self.num_free], refuse)
        except Raised as error:
            self.found.append(Finding("raised", f"{error}, in plan, {error.place}"))
            raise
        rows, victims = self._parsed(told)
        self._compare(rows, victims, waiting)
        self._carry_out(rows, victims, waiting)

    # -- what a planner may know

    @property
    def num_free(self) -> int:
        return self.num_blocks - sum(ref.num_blocks for ref in self.running)

    def waiting(self) -> list[Ref]:
        return [ref for ref in self.refs.values() if not ref.is_running and not ref.is_done]

    def num_new(self, ref: Ref) -> int:
        return -(-(ref.prompt + ref.output) // self.block_size) - ref.num_blocks

    def view(self, ref: Ref) -> dict[str, Any]:
        names = ("id", "num_left", "is_answering", "num_blocks", "num_bypasses")
        return {name: getattr(ref, name) for name in names} | {"num_new_blocks": self.num_new(ref)}

    # -- the comparison

    def find(self, kind: str) -> None:
        self.found.append(Finding(kind, self.when))

    def _parsed(self, told: Any) -> tuple[Rows, list[Ref]]:
        """Rows and victims, as far as they are what the contract says; else a finding."""
        is_pair = type(told) is list and len(told) == 2 and all(type(x) is list for x in told)
        rows: Rows = {}
        victims: list[Ref] = []
        for row in told[0] if is_pair else [None]:
            is_row = type(row) is list and [type(x) for x in row] == [str, int]
            ref = self.refs.get(row[0]) if is_row else None
            if ref is None or ref.is_done or ref.id in rows or not 1 <= row[1] <= ref.num_left:
                self.find("tokens")
            else:
                rows[ref.id] = row[1]
        for name in told[1] if is_pair else []:
            ref = self.refs.get(name) if type(name) is str else None
            if ref is None or not ref.is_running or ref in victims:
                self.find("victims")
            else:
                victims.append(ref)
        return rows, victims

    def expected(self, waiting: list[Ref]) -> tuple[Rows, list[Ref], list[Ref], list[Ref]]:
        """Rows and victims by the contract, who is too big now, and who passes one who is."""
        staying, free, victims = list(self.running), self.num_free, []
        while sum(map(self.num_new, staying)) > free:
            victims.append(staying.pop())
            free += victims[-1].num_blocks
        free -= sum(map(self.num_new, staying))
        rows = {ref.id: 1 for ref in staying if ref.is_answering}
        budget = self.token_budget - len(rows)
        for ref in staying:
            if not ref.is_answering and budget > 0:
                rows[ref.id] = min(ref.num_left, budget)
                budget -= rows[ref.id]
        num_slots, too_big, passing = self.max_running - len(staying), [], []
        for ref in [] if victims else waiting:
            if budget <= 0 or num_slots <= 0:
                break
            if self.num_new(ref) > free:
                too_big.append(ref)
                num_slots = min(num_slots, self.max_bypasses - ref.num_bypasses)
                continue
            rows[ref.id] = min(ref.num_left, budget)
            budget, num_slots, free = budget - rows[ref.id], num_slots - 1, free - self.num_new(ref)
            passing += [ref] if too_big else []
        return rows, victims, too_big, passing

    def _compare(self, rows: Rows, victims: list[Ref], waiting: list[Ref]) -> None:
        due, due_victims, too_big, passing = self.expected(waiting)
        admitted = [ref for ref in waiting if ref.id in rows]
        if (rows, victims) != (due, due_victims):
            self.find("service")
        if any(ref.id in rows for ref in victims):
            self.find("victim_runs")
        if set(victims) != set(due_victims):
            self.find("victims")
            return
        if victims and admitted:
            self.find("thrash")
        if sum(rows.values()) > self.token_budget:
            self.find("overspent")
        for ref in self.running:
            if ref.is_answering and ref.id in due and ref.id not in rows:
                self.find("left_out")
        if len(self.running) - len(victims) + len(admitted) > self.max_running:
            self.find("crowded")
        self._compare_prompts(rows, due, admitted, too_big, passing)

    def _compare_prompts(
        self, rows: Rows, due: Rows, admitted: list[Ref], too_big: list[Ref], passing: list[Ref]
    ) -> None:
        has_left = sum(rows.values()) < self.token_budget
        order = [ref for ref in (*self.running, *self.waiting()) if not ref.is_answering]
        short = [ref for ref in order if rows.get(ref.id, 0) < due.get(ref.id, 0)]
        for ref in short:
            if has_left:
                self.find("blocked" if ref in passing and ref.id not in rows else "idle")
            if any(other.id in rows for other in order[order.index(ref) + 1 :]):
                self.find("starved")
        for ref in too_big:
            behind = sum(other.number > ref.number for other in admitted)
            if behind > max(0, self.max_bypasses - ref.num_bypasses):
                self.find("starved")

    # -- the step itself

    def _carry_out(self, rows: Rows, victims: list[Ref], waiting: list[Ref]) -> None:
        for ref in victims:
            self.running.remove(ref)
            ref.is_running = ref.is_answering = False
            ref.computed = ref.num_blocks = 0
            ref.token_s = None
        computed = []
        for ref in (*self.running, *waiting):
            if ref.id not in rows:
                continue
            if self.num_new(ref) > self.num_free:
                self.find("no_blocks")
                continue
            ref.num_blocks += self.num_new(ref)
            computed.append(ref)
            if not ref.is_running:
                ref.is_running = True
                self.running.append(ref)
                for other in waiting[: waiting.index(ref)]:
                    other.num_bypasses += not other.is_running
        self.now_s += BASE_S + TOKEN_S * sum(rows[ref.id] for ref in computed)
        for ref in computed:
            self._commit(ref, rows[ref.id])

    def _commit(self, ref: Ref, num_tokens: int) -> None:
        ref.computed += num_tokens
        if ref.num_left:
            return
        limit_s = GAP_SHARE * (BASE_S + TOKEN_S * self.token_budget)
        if ref.token_s is not None and self.now_s - ref.token_s > limit_s:
            self.find("gap")
        ref.token_s, ref.is_answering = self.now_s, True
        ref.output += 1
        if ref.is_done:
            self.running.remove(ref)
            ref.is_running, ref.num_blocks = False, 0

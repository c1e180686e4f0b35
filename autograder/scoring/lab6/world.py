"""Lab 6's world: the store that outlives the learner's queue, the bank's ledger, and the crashes.

The store is the public one of the notebook; here it is reached through JSON, checked and bounded.
A world plays the clients, the workers and the clock, and compares the ledger with what was due.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from autograder.harness import ChildMisbehaved, Raised, RemoteError
from autograder.scoring.base import Finding, Session
from autograder.scoring.lab6 import subjects

CLASS = "PaymentQueue"
STORE = {
    "name": "store",
    "methods": {"get": ["table", "key"], "rows": ["table"], "commit": ["writes"]},
    "properties": [],
    "emptied": {},
}
WRITTEN_LIMIT = 2 * 2**20  # characters that one queue may commit
DEPTH_LIMIT = 30  # of a row: deeper ones could not be sent back
WORKERS = ("one", "two", "three", "four")
Payments = dict[str, dict[str, Any]]


class Killed(Exception):
    """The queue's process was killed within this call, as the story wanted."""


class Over(Raised):
    """The story cannot go on; what was found is noted."""


@dataclass(frozen=True)
class Setting:
    """What is drawn once per world."""

    lease_s: int
    max_attempts: int


def draw(rng: random.Random) -> Setting:
    return Setting(rng.randint(40, 400), rng.randint(3, 6))


@dataclass(frozen=True)
class Order:
    """What a client wants done, and the payments that doing it comes to."""

    key: str
    body: dict[str, Any]
    payments: Payments


def order(rng: random.Random, **body: Any) -> Order:
    """An order with drawn values and two or three payments."""
    number = rng.randrange(10**6)
    body = {"to": f"acct-{rng.randrange(10**4)}", "cents": rng.randint(100, 99999)} | body
    names = rng.sample(("refund", "fee", "tax", "tip", "share"), rng.choice((2, 2, 3)))
    payments = {
        name: {"to": body["to"], "cents": body["cents"] + place} for place, name in enumerate(names)
    }
    return Order(f"key-{number}", body, payments)


@dataclass
class World:
    """A queue under test. `now_s` is the clock of everybody."""

    session: Session
    setting: Setting
    found: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lease_s, self.max_attempts = self.setting.lease_s, self.setting.max_attempts
        self.begin()

    def begin(self, now_s: float = 0.0) -> None:
        """A fresh store and a queue on it."""
        self.store = subjects.namespace()["Store"]()
        self.now_s, self._num_written = now_s, 0
        self.restart()

    def restart(self) -> None:
        """The process is started again, on the same store."""
        self.store.restart()
        args = [{"remote": STORE}, self.lease_s, self.max_attempts]
        self.session.new(CLASS, args, self.serve)

    # -- what the learner's code may ask

    def serve(self, name: str, method: str, args: list[Any]) -> Any:
        num_args = {"get": 2, "rows": 1, "commit": 1}.get(method)
        if name != "store" or len(args) != num_args:
            raise ChildMisbehaved(f"asked for {name[:40]}.{method[:40]} with {len(args)} arguments")
        if method == "commit":
            self._check_writes(args[0])
        elif any(type(arg) is not str for arg in args):
            raise RemoteError("TypeError", f"{method} takes texts")
        try:
            return getattr(self.store, method)(*args)
        except (ConnectionAbortedError, ValueError) as error:
            raise RemoteError(type(error).__name__, str(error)) from None

    def _check_writes(self, writes: Any) -> None:
        are_rows = type(writes) is list and all(
            type(write) is list and len(write) == 3 and type(write[0]) is type(write[1]) is str
            for write in writes
        )
        if not are_rows or not is_shallow(writes, DEPTH_LIMIT):
            raise RemoteError("TypeError", "commit takes a list of [table, key, row]")
        self._num_written += len(json.dumps(writes))
        if self._num_written > WRITTEN_LIMIT:
            raise RemoteError("MemoryError", "the store is full")

    # -- what a story does

    def tell(self, method: str, *args: Any) -> Any:
        """Call the queue at the time it is. Raises `Killed` if its process was killed in it."""
        try:
            answer = self.session.call(method, [*args, self.now_s], self.serve)
        except Raised as error:
            if self.store.is_dead:
                raise Killed from None
            self.find("raised", f"{error}, in {method}, {error.place}")
            raise
        if self.store.is_dead:
            raise Killed  # whatever it says, nobody hears it
        return answer

    def submit(self, wanted: Order) -> str:
        """The id of an order that has to be accepted."""
        job = self.tell("submit", wanted.key, wanted.body)
        return job if type(job) is str else self.stop("a client got no id, which is a text")

    def claim(self, job: str, wanted: Order, worker: str = "one") -> dict[str, Any]:
        """A claim that has to hand out this very job."""
        claim = self.tell("claim", worker)
        if claim is None:
            self.stop("a worker asked for it and got nothing")
        return self.checked(claim, job, wanted)

    def checked(self, claim: Any, job: str, wanted: Order) -> dict[str, Any]:
        if type(claim) is not dict or type(claim.get("token")) is not int:
            self.stop("a claim is no dictionary with a whole number as its token")
        if claim.get("job") != job or not same(claim.get("body"), wanted.body):
            self.stop("a worker was handed something else")
        return claim

    def complete(self, job: str, claim: dict[str, Any], wanted: Order, result: Any = "ok") -> Any:
        return self.tell("complete", job, claim["token"], result, wanted.payments)

    def state(self, job: str) -> Any:
        """The state that the queue tells of a job; None if it tells none."""
        told = self.tell("status", job)
        return told.get("state") if type(told) is dict else None

    def audit(self, orders: dict[str, Order], when: str = "") -> None:
        """Compare the ledger with what is due, for the jobs that are done and for all."""
        paid, due, due_by_now = counted(self.store.paid()), Counter(), Counter()
        for job, wanted in orders.items():
            due += counted(wanted.payments.values())
            if self.state(job) == "done":
                due_by_now += counted(wanted.payments.values())
        if paid - due:
            self.find("paid_twice", when)
        elif paid - due_by_now:
            self.find("half", when)
        if due_by_now - paid:
            self.find("unpaid", when)

    def work_off(self, orders: dict[str, Order]) -> None:
        """Workers do what there is to do, each job as often as it is handed out."""
        for _ in range(4 * len(orders) * self.max_attempts):
            claim = self.tell("claim", "three")
            if claim is None:
                return
            claim = claim if type(claim) is dict else {}
            job, body = claim.get("job"), claim.get("body")
            wanted = next((each for each in orders.values() if same(each.body, body)), None)
            if wanted is None or type(job) is not str:
                self.stop("a worker was handed something else")
            self.complete(job, self.checked(claim, job, wanted), wanted)

    def find(self, kind: str, when: str = "") -> None:
        self.found.append(Finding(kind, when))

    def stop(self, when: str) -> Any:
        """A job was not handed out as promised: nothing more can be learnt from this story."""
        self.find("undelivered", when)
        raise Over("the story ends", "", "here")


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: a number is no truth value, and 1 is not 1.0."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def counted(payments: Any) -> Counter[str]:
    return Counter(json.dumps(payment, sort_keys=True) for payment in payments)


def is_shallow(value: Any, left: int) -> bool:
    """Whether lists and dictionaries are nested at most `left` deep."""
    if type(value) not in (list, dict):
        return True
    items = value.values() if type(value) is dict else value
    return left > 0 and all(is_shallow(item, left - 1) for item in items)

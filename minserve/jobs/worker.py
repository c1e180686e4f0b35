"""A worker: claims jobs, has child processes run their handlers, renews leases, commits results.

The parent does nothing but wait for its children and talk to the store, so a lease is renewed in
time whatever a handler does. What has finished by the time the parent looks is committed in one
transaction, together with the claim of the next jobs.

Where jobs are short, each child is handed some ahead, which it starts one after another without
asking. Such a job is the worker's by its own lease and token; if the one before it takes long, or
its process dies, those behind it go back to the queue as they were.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from minserve.errors import ConfigError, InvalidRequest
from minserve.jobs import handler
from minserve.jobs.job import Lease, LostLease, Progress, State, StoreUnavailable
from minserve.jobs.outcomes import Finished
from minserve.jobs.store import JobStore

SWEEP_EVERY_S = 1.0
PURGE_EVERY_S = 60.0
DRAIN_CHECK_S = 0.05
MAX_AHEAD = 32


@dataclass(slots=True)
class Slot:
    """A child process, the job it works on, and those that wait in it for their turn."""

    process: subprocess.Popen
    pipe: Connection
    leases: deque[Lease] = field(default_factory=deque)
    heard_s: float = 0.0
    completed: int = 0
    total: int = 0
    is_ready: bool = False
    kill_at_s: float | None = None

    @property
    def lease(self) -> Lease | None:
        """The job at work."""
        return self.leases[0] if self.leases else None

    @property
    def ahead(self) -> list[Lease]:
        """The jobs that wait behind it."""
        return list(self.leases)[1:]

    @property
    def is_free(self) -> bool:
        return self.is_ready and not self.leases

    def is_at(self, job_id: str) -> bool:
        """Whether this job is at work, rather than one that was called back or given up."""
        return bool(self.leases) and self.leases[0].job.id == job_id


Outcome = tuple[Lease, tuple]
"""A lease, and what came of it: done, failed, stopped or unstarted, with details."""


class Worker:
    """Runs the handlers of `store.kinds` until told to stop.

    Args:
        store: Where the jobs are.
        concurrency: Child processes, each running one handler at a time.
        lease_s: How long after this worker's death its jobs are taken over. Renewed each third of
            it, and at least once a second, which is also how often progress is written.
        grace_s: A handler whose job was cancelled or has expired is told at the next renewal, and
            its process killed this much later.
        drain_s: How long `stop` waits for running handlers before it gives their jobs back.
        ahead_s: About how long the jobs together take that a child is handed ahead, going by the
            longest of late; a higher priority that arrives may wait so long for them. 0 for none.
        poll_s: How long an idle worker waits at most before it looks again.
        kinds: Names of the kinds to work on; all by default.
        setup: `module:function`, called once in each child with `settings`; what it returns is the
            handlers' `ctx.tools`.
    """

    def __init__(
        self,
        store: JobStore,
        *,
        concurrency: int = 2,
        lease_s: float = 30.0,
        grace_s: float = 5.0,
        drain_s: float = 30.0,
        ahead_s: float = 0.1,
        poll_s: float = 0.5,
        kinds: list[str] | None = None,
        setup: str | None = None,
        settings: Mapping[str, Any] | None = None,
        name: str = "",
    ) -> None:
        if concurrency < 1:
            raise ConfigError(f"concurrency is {concurrency}", "run at least 1 handler at a time")
        if lease_s <= 0:
            raise ConfigError(f"lease_s is {lease_s}", "use a second or more")
        for kind in kinds or ():
            if kind not in store.kinds:
                raise ConfigError(f"no kind {kind!r}", f"known: {', '.join(sorted(store.kinds))}")
        self.store = store
        self.name = name or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
        self.concurrency, self.lease_s, self.poll_s = concurrency, lease_s, poll_s
        self.grace_s, self.drain_s, self.ahead_s = grace_s, drain_s, ahead_s
        self.kinds = kinds
        self.tally: Counter[str] = Counter()
        self._child_arguments = (
            os.getpid(),
            {kind.name: kind.handler for kind in store.kinds.values()},
            setup,
            dict(settings or {}),
        )
        self._slots: list[Slot] = []
        self._outcomes: list[Outcome] = []
        self._drain_from_s: float | None = None
        self._beat_s = min(lease_s / 3, 1.0)
        self._longest_s: float | None = None
        self._next_beat_s = self._next_sweep_s = self._next_purge_s = self._next_claim_s = 0.0
        self._idle_s = self._min_idle_s = min(0.02, poll_s)

    @property
    def num_running(self) -> int:
        """Handlers at work."""
        return sum(slot.lease is not None for slot in self._slots)

    def stop(self) -> None:
        """Drain: claim no more, let what runs finish; a second call gives it back at once.

        Safe in a signal handler.
        """
        now_s = time.monotonic()
        self._drain_from_s = now_s if self._drain_from_s is None else now_s - self.drain_s

    def run(self, is_done: Callable[[], bool] = lambda: False) -> None:
        """Work until `stop()`, or until `is_done()` between two jobs.

        Outlives a database that goes away for a while. Raises `ConfigError` if `setup` fails.
        """
        try:
            self._slots = [self._new_slot() for _ in range(self.concurrency)]
            while not (self._is_drained() or is_done()):
                self._listen()
                try:
                    self._exchange()
                    self._beat()
                    self._sweep()
                except StoreUnavailable:  # what is finished is kept, and told when it is back
                    self.tally["store_unavailable"] += 1
                    time.sleep(random.uniform(0.05, 0.3))
        finally:
            self._close()

    # -- children

    def _new_slot(self) -> Slot:
        return Slot(*handler.start(*self._child_arguments))

    def _listen(self) -> None:
        """Wait until a child has something to say or something else is due; hear all of them."""
        now_s = time.monotonic()
        due = [self._next_beat_s, self._next_sweep_s]
        due += [slot.kill_at_s for slot in self._slots if slot.kill_at_s is not None]
        if self._drain_from_s is not None:
            due.append(now_s + DRAIN_CHECK_S)
        elif any(slot.is_free for slot in self._slots):
            due.append(self._next_claim_s)
        if self._outcomes:
            due.append(now_s)
        for pipe in wait([slot.pipe for slot in self._slots], max(0.0, min(due) - now_s)):
            number, slot = next((n, s) for n, s in enumerate(self._slots) if s.pipe is pipe)
            if not self._hear_all(slot):
                self._slots[number] = self._bury(slot)
        for number, slot in enumerate(self._slots):
            if slot.kill_at_s is not None and time.monotonic() >= slot.kill_at_s:
                slot.process.kill()
                self.tally["killed"] += 1
                self._slots[number] = self._bury(slot)

    def _hear_all(self, slot: Slot) -> bool:
        """Take in what a child has said; False if it is gone."""
        try:
            while slot.pipe.poll():
                self._hear(slot, slot.pipe.recv())
        except (EOFError, OSError):
            return False
        return True

    def _hear(self, slot: Slot, message: tuple) -> None:
        match message:
            case ("ready",):
                slot.is_ready = True
            case ("broken", reason):
                raise ConfigError(reason, "see the worker's options")
            case (_, job_id, *_) if not slot.is_at(job_id):  # it was called back just then
                self._say(slot, "stop", job_id)
            case ("progress", _, completed, total):
                slot.completed, slot.total = completed, total
            case ("effect", _, key, value):
                self._answer(slot, lambda: self.store.effect(slot.leases[0], key, value))
            case ("ledger", job_id):
                self._answer(slot, lambda: self.store.ledger(None, job_id))
            case ("end", _, seconds, outcome):
                self._longest_s = max(seconds, 0.9 * (self._longest_s or 0.0))
                self._end(slot, outcome)

    def _answer(self, slot: Slot, ask: Callable[[], Any]) -> None:
        """Tell a handler what the store says."""
        try:
            self._say(slot, "stands", ask())
        except LostLease:
            self._tell_to_stop(slot)
        except (StoreUnavailable, InvalidRequest) as error:
            self._say(slot, "refused", str(error))

    @staticmethod
    def _say(slot: Slot, *message: Any) -> None:
        with suppress(OSError):  # a child that is gone is buried when its pipe is next listened to
            slot.pipe.send(message)

    def _end(self, slot: Slot, outcome: tuple) -> None:
        """The job at work has ended; the next one, if there is one, begins."""
        if slot.leases:
            self._outcomes.append((slot.leases.popleft(), outcome))
        slot.kill_at_s = None
        slot.completed = slot.total = 0
        slot.heard_s = time.monotonic()

    def _bury(self, slot: Slot) -> Slot:
        """A child is gone: its attempt has failed, unless the job was not its any more."""
        slot.process.kill()
        code = slot.process.wait()
        self._hear_all(slot)
        how = "stopped" if slot.kill_at_s is not None else "failed"
        reason = f"the handler's process died ({f'signal {-code}' if code < 0 else code})"
        self._recall(slot)
        self._end(slot, (how, reason, 0.0, False))
        slot.pipe.close()
        if not slot.is_ready:
            raise ConfigError(f"a handler's process does not start ({code})", "see its output")
        return self._new_slot()

    def _recall(self, slot: Slot) -> None:
        """What waits in a child goes back; the child is told, and forgets it."""
        if slot.ahead:
            self._say(slot, "recall")
            self._outcomes += [(lease, ("unstarted",)) for lease in slot.ahead]
            slot.leases = deque([slot.leases[0]])

    def _tell_to_stop(self, slot: Slot) -> None:
        if slot.kill_at_s is None:
            self.tally["told_to_stop"] += 1
            slot.kill_at_s = time.monotonic() + self.grace_s
            self._recall(slot)
            self._say(slot, "stop", slot.leases[0].job.id)

    # -- the store

    def _exchange(self) -> None:
        """Commit what has finished and claim for who is free, in one transaction."""
        if self._drain_from_s is not None:
            for slot in self._slots:
                self._recall(slot)
        takers = self._takers()
        count, ahead = sum(slot.is_free for slot in takers), self._ahead(takers)
        if not (self._outcomes or count or ahead):
            return
        leases: list[Lease] = []
        with self.store.transaction(is_durable=bool(self._outcomes)) as tx:
            said = self._settle(self._outcomes, tx)
            if count or ahead:
                leases = self.store.claim(
                    self.name, count, ahead=ahead, lease_s=self.lease_s, kinds=self.kinds, tx=tx
                )
        self._outcomes.clear()
        self.tally += said
        self.tally["claimed"] += len(leases)
        self._hand_out(leases, takers)
        if count:
            self._idle_s = self._min_idle_s if leases else min(self._idle_s * 1.5, self.poll_s)
            self._next_claim_s = time.monotonic() + self._idle_s * random.uniform(0.8, 1.2)

    def _takers(self) -> list[Slot]:
        """Who is free, or so quick of late that it may take jobs ahead."""
        now_s = time.monotonic()
        if self._drain_from_s is not None or not (self._outcomes or now_s >= self._next_claim_s):
            return []
        return [
            slot
            for slot in self._slots
            if slot.is_free
            or (slot.is_ready and slot.kill_at_s is None and now_s - slot.heard_s < self.ahead_s)
        ]

    def _ahead(self, takers: Sequence[Slot]) -> int:
        """How many jobs to claim ahead."""
        if self._longest_s is None:
            return 0
        depth = int(min(MAX_AHEAD, self.ahead_s / max(self._longest_s, 1e-6)))
        waiting = [len(slot.ahead) for slot in takers]
        return sum(depth - there for there in waiting if there <= depth // 2)

    def _hand_out(self, leases: Sequence[Lease], takers: Sequence[Slot]) -> None:
        """A job to each child that is free; those claimed ahead to whoever has the fewest."""
        handed: list[list[Lease]] = [[] for _ in takers]
        for lease in leases:
            slot, its_leases = min(zip(takers, handed, strict=True), key=lambda t: len(t[0].leases))
            if not slot.leases:
                slot.heard_s = time.monotonic()
            slot.leases.append(lease)
            its_leases.append(lease)
        for slot, its_leases in zip(takers, handed, strict=True):
            if its_leases:
                self._say(slot, "run", [lease.job for lease in its_leases])

    def _settle(self, outcomes: Sequence[Outcome], tx) -> Counter[str]:
        """Write what came of jobs; returns what to count them as."""
        said: Counter[str] = Counter()
        finished = [Finished(lease, *more) for lease, (how, *more) in outcomes if how == "done"]
        failed = [(lease, *more) for lease, (how, *more) in outcomes if how == "failed"]
        for one, error in zip(finished, self.store.complete_many(finished, tx), strict=True):
            if error is None:
                said["done"] += 1
            elif isinstance(error, LostLease):
                said["lost"] += 1
            else:
                failed.append((one.lease, str(error), 0.0, False))
        for lease, reason, retry_after_s, is_permanent in failed:
            try:
                state = self.store.fail(
                    lease, reason, retry_after_s=retry_after_s, is_permanent=is_permanent, tx=tx
                )
                said["dead" if state is State.DEAD else "retried"] += 1
            except LostLease:
                said["lost"] += 1
        for lease, (how, *_) in outcomes:
            if how == "unstarted":
                self.store.release(lease, tx=tx)
            if how in ("unstarted", "stopped"):
                said[how] += 1
        return said

    def _beat(self) -> None:
        """Renew all leases, pass on progress, and stop whoever has lost its job."""
        now_s = time.monotonic()
        if now_s < self._next_beat_s:
            return
        self._next_beat_s = now_s + self._beat_s
        for slot in self._slots:
            if now_s - slot.heard_s > self._beat_s:
                self._recall(slot)
        running = [slot for slot in self._slots if slot.leases]
        progress = [
            Progress(lease.job.id, lease.token, is_started=how != "unstarted")
            for lease, (how, *_) in self._outcomes
        ]
        for slot in running:
            its = slot.leases[0]
            progress.append(Progress(its.job.id, its.token, slot.completed, slot.total))
            progress += [
                Progress(lease.job.id, lease.token, is_started=False) for lease in slot.ahead
            ]
        if not progress:
            return
        held = self.store.renew(progress, self.lease_s)
        for slot in running:
            if slot.leases[0].job.id not in held:
                self._tell_to_stop(slot)

    def _sweep(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_sweep_s:
            self._next_sweep_s = now_s + SWEEP_EVERY_S * random.uniform(0.8, 1.2)
            self.store.sweep()
        if now_s >= self._next_purge_s:
            self._next_purge_s = now_s + PURGE_EVERY_S
            self.store.purge()

    # -- the end

    def _is_drained(self) -> bool:
        if self._drain_from_s is None:
            return False
        is_late = time.monotonic() >= self._drain_from_s + self.drain_s
        return is_late or not (self.num_running or self._outcomes)

    def _close(self) -> None:
        """No child outlives its worker; what it still worked on goes back without counting."""
        for slot in self._slots:
            slot.process.kill()
            slot.pipe.close()
        for slot in self._slots:
            slot.process.wait()
        left = [lease for slot in self._slots for lease in slot.leases]
        if left:
            with suppress(StoreUnavailable), self.store.transaction() as tx:
                for lease in left:  # if it cannot, the leases run out by themselves
                    self.store.release(lease, tx=tx)

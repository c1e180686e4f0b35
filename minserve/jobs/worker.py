"""A worker: claims jobs, has child processes run their handlers, renews leases, commits results.

The parent does nothing but wait for its children and talk to the store, so a lease is renewed in
time whatever a handler does. What has finished by the time the parent looks is committed in one
transaction, together with the claim of the next jobs.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from minserve.errors import ConfigError, InvalidRequest
from minserve.jobs.handler import serve
from minserve.jobs.job import ContractBroken, Lease, LostLease, Progress, State, StoreUnavailable
from minserve.jobs.store import JobStore

SWEEP_EVERY_S = 1.0
PURGE_EVERY_S = 60.0
DRAIN_CHECK_S = 0.05


@dataclass(slots=True)
class Slot:
    """A child process, and the job it works on."""

    process: BaseProcess
    pipe: Connection
    lease: Lease | None = None
    completed: int = 0
    total: int = 0
    is_ready: bool = False
    kill_at_s: float | None = None

    @property
    def is_free(self) -> bool:
        return self.is_ready and self.lease is None


Outcome = tuple[Lease, tuple]
"""A lease, and what its handler's process said last: done, failed or stopped, with details."""


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
        self.grace_s, self.drain_s = grace_s, drain_s
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
        # NOTE: spawn, not fork: a forked child would carry the database connection along.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, *self._child_arguments), daemon=True)
        process.start()
        theirs.close()
        return Slot(process, ours)

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
            try:
                while slot.pipe.poll():
                    self._hear(slot, slot.pipe.recv())
            except (EOFError, OSError):
                self._slots[number] = self._bury(slot)
        for number, slot in enumerate(self._slots):
            if slot.kill_at_s is not None and time.monotonic() >= slot.kill_at_s:
                slot.process.kill()
                self.tally["killed"] += 1
                self._slots[number] = self._bury(slot)

    def _hear(self, slot: Slot, message: tuple) -> None:
        match message:
            case ("ready",):
                slot.is_ready = True
            case ("broken", reason):
                raise ConfigError(reason, "see the worker's options")
            case ("progress", completed, total):
                slot.completed, slot.total = completed, total
            case ("effect", key, value):
                self._commit_effect(slot, key, value)
            case _:
                self._end(slot, message)

    def _commit_effect(self, slot: Slot, key: str, value: Any) -> None:
        try:
            self._say(slot, "stands", self.store.effect(slot.lease, key, value))
        except LostLease:
            self._tell_to_stop(slot)
        except (StoreUnavailable, InvalidRequest) as error:
            self._say(slot, "refused", str(error))

    @staticmethod
    def _say(slot: Slot, *message: Any) -> None:
        with suppress(OSError):  # a child that is gone is buried when its pipe is next listened to
            slot.pipe.send(message)

    def _end(self, slot: Slot, message: tuple) -> None:
        if slot.lease is not None:
            self._outcomes.append((slot.lease, message))
        slot.lease = slot.kill_at_s = None
        slot.completed = slot.total = 0

    def _bury(self, slot: Slot) -> Slot:
        """A child is gone: its attempt has failed, unless the job was not its any more."""
        slot.process.join(timeout=5)
        how = "stopped" if slot.kill_at_s is not None else "failed"
        code = slot.process.exitcode
        reason = f"the handler's process died ({f'signal {-code}' if code and code < 0 else code})"
        self._end(slot, (how, reason, 0.0, False))
        slot.pipe.close()
        if not slot.is_ready:
            raise ConfigError(f"a handler's process does not start ({code})", "see its output")
        return self._new_slot()

    def _tell_to_stop(self, slot: Slot) -> None:
        if slot.kill_at_s is None:
            self.tally["told_to_stop"] += 1
            slot.kill_at_s = time.monotonic() + self.grace_s
            self._say(slot, "stop")

    # -- the store

    def _exchange(self) -> None:
        """Commit what has finished and claim for who is free, in one transaction."""
        free = [slot for slot in self._slots if slot.is_free]
        wants = len(free) if self._may_claim() or (free and self._outcomes) else 0
        if self._drain_from_s is not None:
            wants = 0
        if not (self._outcomes or wants):
            return
        said: Counter[str] = Counter()
        leases: list[Lease] = []
        with self.store.transaction(is_durable=bool(self._outcomes)) as tx:
            for lease, message in self._outcomes:
                said[self._settle(lease, message, tx)] += 1
            if wants:
                leases = self.store.claim(
                    self.name, wants, lease_s=self.lease_s, kinds=self.kinds, tx=tx
                )
        self._outcomes.clear()
        self.tally += said
        self.tally["claimed"] += len(leases)
        for slot, lease in zip(free, leases, strict=False):
            slot.lease = lease
            self._say(slot, "run", lease.job)
        if wants:
            self._idle_s = self._min_idle_s if leases else min(self._idle_s * 1.5, self.poll_s)
            self._next_claim_s = time.monotonic() + self._idle_s * random.uniform(0.8, 1.2)

    def _may_claim(self) -> bool:
        return time.monotonic() >= self._next_claim_s

    def _settle(self, lease: Lease, message: tuple, tx) -> str:
        """Write what came of one job; returns what to count it as."""
        try:
            match message:
                case ("done", result, effects):
                    try:
                        self.store.complete(lease, result, effects, tx)
                        return "done"
                    except (ContractBroken, InvalidRequest) as error:
                        state = self.store.fail(lease, str(error), tx=tx)
                case ("failed", reason, retry_after_s, is_permanent):
                    state = self.store.fail(
                        lease, reason, retry_after_s=retry_after_s, is_permanent=is_permanent, tx=tx
                    )
                case _:
                    return "stopped"
            return "dead" if state is State.DEAD else "retried"
        except LostLease:
            return "lost"

    def _beat(self) -> None:
        """Renew all leases, pass on progress, and stop whoever has lost its job."""
        now_s = time.monotonic()
        if now_s < self._next_beat_s:
            return
        self._next_beat_s = now_s + self._beat_s
        running = [slot for slot in self._slots if slot.lease is not None]
        finished = [Progress(lease.job.id, lease.token) for lease, _ in self._outcomes]
        progress = [
            Progress(slot.lease.job.id, slot.lease.token, slot.completed, slot.total)
            for slot in running
        ]
        if not (progress or finished):
            return
        held = self.store.renew([*progress, *finished], self.lease_s)
        for slot in running:
            if slot.lease.job.id not in held:
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
            slot.process.join()
        with suppress(StoreUnavailable):  # then the leases run out by themselves
            for slot in self._slots:
                if slot.lease is not None:
                    self.store.release(slot.lease)

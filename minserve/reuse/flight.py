"""Single flight: of many who miss the same answer at once, one has it computed and all get it.

Made of callbacks, so it runs on any event loop and on the virtual clock. If the one who leads is
cancelled, the next takes over. An error ends the flight for all who were waiting, and is forgotten:
whoever asks next tries again.

Equivalent inputs: one key in one partition. Valid until the answer is there. Scope: the partition.
Order: the first leads. A cancelled follower changes nothing for the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Waiter(Generic[T]):
    """One request's place in a flight.

    `lead()` is called once if it is to compute the answer; later, exactly one of `on_done(answer)`
    and `on_failed(error)`, unless it left before.
    """

    key: Hashable
    lead: Callable[[], None]
    on_done: Callable[[T], None]
    on_failed: Callable[[BaseException], None]


class SingleFlight(Generic[T]):
    """Who waits for what. The key must hold the partition, so that no identity joins another's."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, list[Waiter[T]]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def is_leader(self, waiter: Waiter[T]) -> bool:
        """Whether `waiter` is the one who computes."""
        return self._flights.get(waiter.key, [None])[0] is waiter

    def join(self, waiter: Waiter[T]) -> bool:
        """Wait for the answer; the first to come leads. Returns whether `waiter` does."""
        flight = self._flights.setdefault(waiter.key, [])
        flight.append(waiter)
        if len(flight) == 1:
            waiter.lead()
            return True
        return False

    def leave(self, waiter: Waiter[T]) -> None:
        """`waiter` no longer wants the answer. If it led, the next who waits takes over."""
        flight = self._flights.get(waiter.key, [])
        if waiter not in flight:
            return
        led = flight[0] is waiter
        flight.remove(waiter)
        if not flight:
            del self._flights[waiter.key]
        elif led:
            flight[0].lead()

    def done(self, waiter: Waiter[T], answer: T) -> None:
        """The leader has the answer. From anybody else, or too late, it changes nothing."""
        for each in self._land(waiter):
            each.on_done(answer)

    def failed(self, waiter: Waiter[T], error: BaseException) -> None:
        """The leader failed, and was not cancelled: all who waited hear of it."""
        for each in self._land(waiter):
            each.on_failed(error)

    def _land(self, waiter: Waiter[T]) -> list[Waiter[T]]:
        return self._flights.pop(waiter.key) if self.is_leader(waiter) else []


async def share(flight: SingleFlight[T], key: Hashable, compute: Callable[[], Awaitable[T]]) -> T:
    """The answer under `key`, from one `await compute()` for all who ask meanwhile.

    Raises what `compute` raised. Cancelling one who waits leaves the others their answer.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()
    tasks: list[asyncio.Task] = []

    async def work() -> None:
        try:
            flight.done(waiter, await compute())
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            flight.failed(waiter, error)

    def settle(setter: Callable, value: object) -> None:
        if not answer.done():
            setter(value)

    waiter: Waiter[T] = Waiter(
        key,
        lambda: tasks.append(loop.create_task(work())),
        lambda value: settle(answer.set_result, value),
        lambda error: settle(answer.set_exception, error),
    )
    flight.join(waiter)
    try:
        return await answer
    finally:
        for task in tasks:
            if not task.done():
                task.cancel()
        flight.leave(waiter)

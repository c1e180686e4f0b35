"""Single flight: one computation for many who ask, and nobody is left waiting."""

from __future__ import annotations

import asyncio

import pytest

from minserve.clock import EventLoop, VirtualClock
from minserve.reuse.flight import SingleFlight, Waiter, share


class Asker:
    """Joins a flight and notes what it hears."""

    def __init__(self, flight, key="k"):
        self.heard, self.led = [], 0
        self.waiter = Waiter(key, self._lead, self.heard.append, self.heard.append)
        flight.join(self.waiter)

    def _lead(self):
        self.led += 1


def test_only_the_first_computes_and_all_get_the_answer():
    flight = SingleFlight()
    askers = [Asker(flight) for _ in range(100)]
    assert [asker.led for asker in askers] == [1] + [0] * 99
    flight.done(askers[0].waiter, "answer")
    assert all(asker.heard == ["answer"] for asker in askers)
    assert len(flight) == 0


def test_other_keys_fly_apart():
    flight = SingleFlight()
    one, other = Asker(flight, "tenant A"), Asker(flight, "tenant B")
    assert one.led == other.led == 1
    flight.done(one.waiter, "for A")
    assert other.heard == []


def test_when_the_leader_leaves_the_next_takes_over():
    flight = SingleFlight()
    first, second, third = (Asker(flight) for _ in range(3))
    flight.leave(first.waiter)
    assert (second.led, third.led) == (1, 0)
    flight.done(first.waiter, "too late")
    assert second.heard == []
    flight.done(second.waiter, "answer")
    assert (first.heard, second.heard, third.heard) == ([], ["answer"], ["answer"])


def test_a_follower_who_leaves_changes_nothing():
    flight = SingleFlight()
    first, second, third = (Asker(flight) for _ in range(3))
    flight.leave(second.waiter)
    flight.leave(second.waiter)
    flight.done(first.waiter, "answer")
    assert second.heard == [] and third.heard == ["answer"]


def test_the_last_to_leave_ends_the_flight():
    flight = SingleFlight()
    flight.leave(Asker(flight).waiter)
    assert len(flight) == 0
    assert Asker(flight).led == 1


def test_an_error_reaches_all_who_wait_and_is_not_kept():
    flight = SingleFlight()
    askers = [Asker(flight) for _ in range(3)]
    error = RuntimeError("no")
    flight.failed(askers[0].waiter, error)
    assert all(asker.heard == [error] for asker in askers)
    assert Asker(flight).led == 1, "whoever asks next tries again"


def test_it_runs_on_the_virtual_clock():
    loop, flight, answered = EventLoop(VirtualClock()), SingleFlight(), []

    def arrive():
        waiter = Waiter(
            "k",
            lambda: loop.at(loop.clock.now_s() + 5.0, lambda: flight.done(waiter, "answer")),
            lambda answer: answered.append(loop.clock.now_s()),
            answered.append,
        )
        flight.join(waiter)

    for time_s in (0.0, 1.0, 4.9, 6.0):
        loop.at(time_s, arrive)
    loop.run()
    assert answered == [5.0, 5.0, 5.0, 11.0]


# -- on asyncio


class Model:
    """Answers when told to, and counts its calls."""

    def __init__(self):
        self.calls, self.go = 0, asyncio.Event()

    async def __call__(self):
        self.calls += 1
        await self.go.wait()
        return f"answer {self.calls}"


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_hundred_identical_misses_make_one_call():
    async def run():
        flight, model = SingleFlight(), Model()
        tasks = [asyncio.ensure_future(share(flight, "k", model)) for _ in range(100)]
        await settle()
        model.go.set()
        answers = await asyncio.gather(*tasks)
        assert model.calls == 1 and set(answers) == {"answer 1"} and len(flight) == 0

    asyncio.run(run())


def test_a_cancelled_leader_is_followed_by_another_call():
    async def run():
        flight, model = SingleFlight(), Model()
        tasks = [asyncio.ensure_future(share(flight, "k", model)) for _ in range(3)]
        await settle()
        tasks[0].cancel()
        await settle()
        assert model.calls == 2
        model.go.set()
        assert await asyncio.gather(*tasks[1:]) == ["answer 2"] * 2
        assert tasks[0].cancelled() and len(flight) == 0

    asyncio.run(run())


def test_when_all_are_cancelled_the_work_stops():
    async def run():
        flight, model = SingleFlight(), Model()
        tasks = [asyncio.ensure_future(share(flight, "k", model)) for _ in range(3)]
        await settle()
        for task in tasks:
            task.cancel()
        await settle()
        assert len(flight) == 0
        assert len(asyncio.all_tasks()) == 1, "only this one is left"

    asyncio.run(run())


def test_an_error_is_raised_to_each_and_the_next_tries_again():
    async def run():
        flight = SingleFlight()

        async def fail():
            await asyncio.sleep(0)
            raise ValueError("no")

        tasks = [asyncio.ensure_future(share(flight, "k", fail)) for _ in range(3)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, ValueError) for result in results)

        async def work():
            return 7

        assert await share(flight, "k", work) == 7
        with pytest.raises(ValueError):
            await share(flight, "k", fail)

    asyncio.run(run())

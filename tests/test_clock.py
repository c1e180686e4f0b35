"""Clocks and the event loop: order by time, ties by scheduling, posts from other threads."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import small

from minserve.clock import EventLoop, VirtualClock, WallClock
from minserve.errors import ConfigError


@given(times=st.lists(st.integers(0, 4), max_size=12))
@small(80)
def test_calls_come_in_order_of_time_and_ties_in_order_of_scheduling(times):
    loop, called = EventLoop(VirtualClock()), []
    for index, time_s in enumerate(times):
        loop.at(
            float(time_s),
            lambda index=index: called.append((loop.clock.now_s(), index)),
        )
    loop.run()
    assert called == sorted((float(time_s), index) for index, time_s in enumerate(times))


def test_what_a_call_schedules_for_now_comes_after_what_was_scheduled_for_now_before():
    loop, called = EventLoop(VirtualClock()), []
    loop.at(1.0, lambda: (called.append("a"), loop.at(1.0, lambda: called.append("late"))))
    loop.at(1.0, lambda: called.append("b"))
    loop.run()
    assert called == ["a", "b", "late"]


def test_a_time_that_has_passed_means_next_and_time_never_goes_back():
    loop, called = EventLoop(VirtualClock()), []

    def first():
        loop.at(2.0, lambda: called.append(loop.clock.now_s()))
        loop.at(9.0, lambda: called.append(loop.clock.now_s()))

    loop.at(5.0, first)
    loop.run()
    assert called == [5.0, 9.0]


def test_a_loop_stops_when_it_is_done_and_can_be_run_on():
    loop, called = EventLoop(VirtualClock()), []
    for time_s in (1.0, 2.0, 3.0):
        loop.at(time_s, lambda time_s=time_s: called.append(time_s))
    loop.run(lambda: len(called) == 2)
    assert called == [1.0, 2.0] and loop.clock.now_s() == 2.0
    loop.run()
    assert called == [1.0, 2.0, 3.0]


def test_a_call_that_raises_leaves_the_others_to_be_run():
    loop, called = EventLoop(VirtualClock()), []
    loop.at(1.0, lambda: 1 / 0)
    loop.at(2.0, lambda: called.append("next"))
    with pytest.raises(ZeroDivisionError):
        loop.run()
    loop.run()
    assert called == ["next"]


def test_a_virtual_clock_does_not_wait_for_posts():
    with pytest.raises(ConfigError):
        EventLoop(VirtualClock()).run(forever=True)


def test_posts_on_a_virtual_clock_are_called_in_order():
    loop, called = EventLoop(VirtualClock()), []
    loop.at(1.0, lambda: [loop.post(lambda n=n: called.append(n)) for n in range(3)])
    loop.at(1.0, lambda: called.append("scheduled"))
    loop.run()
    assert sorted(map(str, called)) == ["0", "1", "2", "scheduled"]
    assert [n for n in called if n != "scheduled"] == [0, 1, 2]


@pytest.mark.parametrize("is_asleep_until", [None, 1e9], ids=["nothing due", "due in 30 years"])
def test_a_post_from_another_thread_wakes_a_loop_on_the_wall_clock(is_asleep_until):
    loop, called = EventLoop(WallClock()), []
    if is_asleep_until:
        loop.at(is_asleep_until, lambda: called.append("never"))
    runner = threading.Thread(
        target=loop.run, args=(lambda: len(called) == 100,), kwargs={"forever": True}, daemon=True
    )
    runner.start()
    for n in range(100):
        loop.post(lambda n=n: called.append(n))
    runner.join(timeout=60)
    assert not runner.is_alive(), "the loop never woke"
    assert called == list(range(100))


def test_posts_from_many_threads_are_each_called_once():
    loop, called = EventLoop(WallClock()), []

    def post_some(base):
        for n in range(50):
            loop.post(lambda n=n: called.append(base + n))

    posters = [threading.Thread(target=post_some, args=(1_000 * n,)) for n in range(4)]
    for poster in posters:
        poster.start()
    runner = threading.Thread(
        target=loop.run, args=(lambda: len(called) == 200,), kwargs={"forever": True}, daemon=True
    )
    runner.start()
    runner.join(timeout=60)
    assert not runner.is_alive()
    assert sorted(called) == sorted(1_000 * k + n for k in range(4) for n in range(50))


def test_the_wall_clock_waits_at_least_as_long_as_it_says():
    clock = WallClock()
    until_s = clock.now_s() + 0.005
    clock.wait_until(until_s, threading.Event())
    assert clock.now_s() >= until_s

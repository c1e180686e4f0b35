"""The queue shows what a queue that is sorted at every step would show."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support import ask, small

from minserve.request import Identity, WorkloadClass
from minserve.scheduling.ordering import (
    EarliestDeadline,
    Ordering,
    PriorityWithAgeing,
    VirtualTokenCounter,
)
from minserve.scheduling.queue import Queue
from minserve.scheduling.reservation import OnlineFirst, is_offline


class ByTheClock(Ordering):
    """An order that turns round as time goes by."""

    is_fixed = False

    def key(self, request, now_s):
        return (request.priority * now_s) % 7.0


KINDS = (Ordering, EarliestDeadline, PriorityWithAgeing, VirtualTokenCounter, ByTheClock)
COUNT = 5


class Sorted:
    """Everybody who waits, in a list that is sorted before every look."""

    def __init__(self, ordering):
        self.ordering, self.requests = ordering, []

    def shown(self, now_s):
        ordering = self.ordering
        order = sorted(self.requests, key=lambda r: (ordering.key(r, now_s), r.number))
        if not isinstance(ordering, OnlineFirst):
            return order, order[:COUNT]
        sides = [[r for r in order if is_offline(r) is side] for side in (False, True)]
        return order, [*sides[0][:COUNT], *sides[1][:COUNT]]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(0, 3), st.integers(-2, 2), st.booleans()),
        st.tuples(st.just("leave"), st.integers(0, 30)),
        st.tuples(st.just("serve"), st.integers(0, 30), st.integers(0, 9), st.integers(0, 3)),
        st.tuples(st.just("return"), st.integers(0, 30)),
    ),
    max_size=40,
)


@given(steps, st.sampled_from(KINDS), st.booleans())
@small(150)
def test_lanes_merged_are_the_queue_sorted(steps, kind, with_offline):
    ordering = OnlineFirst(kind()) if with_offline else kind()
    queue, plain, running = Queue(ordering), Sorted(ordering), []
    for number, (what, who, *more) in enumerate(steps, start=1):
        queue.now_s = now_s = float(number // 2)
        waiting = plain.requests
        if what == "join":
            priority, offline = more
            request = ask(
                f"r{number}",
                arrival_s=now_s,
                priority=priority,
                identity=Identity(f"t{who}"),
                deadline_s=now_s + 9 - who if who else None,
                workload_class=WorkloadClass.BATCH if offline else WorkloadClass.STANDARD,
            )
            request.number = number
            ordering.arrived(request, [*queue.heads(), *running])
            queue.append(request)
            waiting.append(request)
        elif what == "serve" and waiting:  # from now on it runs
            request = waiting.pop(who % len(waiting))
            queue.remove(request)
            running.append(request)
            ordering.served(request, *more)
        elif what == "leave" and waiting:
            queue.remove(waiting.pop(who % len(waiting)))
        elif what == "return" and running:  # it was preempted
            request = running.pop(who % len(running))
            queue.append(request)
            waiting.append(request)
        order, shown = plain.shown(now_s)
        assert list(queue) == order and len(queue) == len(order)
        assert ordering.shown(queue, COUNT) == shown
        assert {r.identity.tenant for r in order} >= {r.identity.tenant for r in queue.heads()}
    for request in list(queue):
        queue.remove(request)
    assert not queue.lanes


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=30))
@small(50)
def test_the_heads_of_lanes_say_as_much_of_who_is_active_as_everybody_does(steps):
    ordering, plain = VirtualTokenCounter(), VirtualTokenCounter()
    queue = Queue(ordering)
    for number, (tenant, is_served) in enumerate(steps):
        request = ask(f"r{number}", identity=Identity(f"t{tenant}"))
        request.number = number
        ordering.arrived(request, queue.heads())
        plain.arrived(request, list(queue))
        queue.append(request)
        for each in (ordering, plain):
            each.served(request, number, 1)
        if is_served:
            queue.remove(queue.first(1)[0])
        assert ordering.counters == plain.counters

"""The local client: every request hears its own events to the end, and nobody is left waiting."""

from __future__ import annotations

import pytest
from support import POLICIES, ContentExecutor, ask, check_drained, check_output, content_engine

from minserve.client import LocalClient
from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.errors import ConfigError
from minserve.events import Finished
from minserve.execution.simulated import CostModel, SimulatedExecutor
from minserve.request import FinishReason, Status
from minserve.scheduling.batching import Decision, DynamicBatching, StaticBatching


class Heard(dict):
    """Listeners by name, and the events that each heard."""

    def by(self, name: str):
        self[name] = []
        return self[name].append

    def ends(self, name: str) -> list[Finished]:
        ends = [event for event in self[name] if isinstance(event, Finished)]
        assert len(ends) == 1 and self[name][-1] is ends[0], f"{name} heard {self[name]}"
        return ends


def ends(heard: Heard) -> list[Finished]:
    return [event for events in heard.values() for event in events if isinstance(event, Finished)]


def simulated(policy=None, **more) -> tuple[LocalClient, Heard]:
    cost = CostModel(per_step_s=1.0, per_token_s=0.0, per_row_s=0.0, per_context_token_s=0.0)
    engine = Engine(SimulatedExecutor(32, 4, cost=cost), policy, **more)
    return LocalClient(engine, EventLoop(VirtualClock())), Heard()


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_each_listener_hears_only_its_own_events_and_one_end(policy):
    client, heard = simulated(policy())
    requests = [ask(f"r{n}", n + 1, 3, arrival_s=n / 2) for n in range(6)]
    for request in requests:
        client.send(request, heard.by(request.id))
    client.run()
    for request in requests:
        assert {event.request_id for event in heard[request.id]} == {request.id}
        assert [event.kind for event in heard[request.id]][:2] == ["submitted", "admitted"]
        assert heard.ends(request.id)[0].reason == "length"
        tokens = [t for e in heard[request.id] if e.kind == "tokens" for t in e.token_ids]
        assert tokens == request.output_token_ids and len(tokens) == 3
    check_drained(client.engine)


def test_a_request_is_submitted_at_its_arrival_and_not_before():
    client, heard = simulated()
    client.send(ask("late", arrival_s=7.0), heard.by("late"))
    client.send(ask("early", arrival_s=2.0), heard.by("early"))
    client.run()
    assert (heard["late"][0].time_s, heard["early"][0].time_s) == (7.0, 2.0)


def test_arrivals_and_cancels_during_a_step_wait_for_its_end():
    client, heard = simulated()
    a, b = ask("a", 4, 5), ask("b", 4, 2, arrival_s=0.5)
    client.send(a, heard.by("a"))
    client.send(b, heard.by("b"))
    client.cancel("a", at_s=0.7)
    client.run()
    assert heard["a"][-1] == Finished(0.7, "a", "cancelled", 0)
    assert b.timeline.scheduled_s == 1.0 and b.timeline.token_times_s == [2.0, 3.0]
    check_drained(client.engine)


def test_engines_on_one_loop_run_side_by_side():
    one, heard = simulated()
    two = LocalClient(Engine(SimulatedExecutor(cost=CostModel(1.5, 0, 0, 0))), one.loop)
    for client, name in ((one, "one"), (two, "two")):
        client.send(ask(name, 2, 3), heard.by(name))
    one.loop.run()
    times = {name: [e.time_s for e in heard[name] if e.kind == "tokens"] for name in heard}
    assert times == {"one": [1.0, 2.0, 3.0], "two": [1.5, 3.0, 4.5]}


def test_a_policy_that_waits_is_asked_again_when_it_said():
    client, heard = simulated(DynamicBatching(4, max_wait_s=0.25))
    client.send(ask("a", 2, 1, arrival_s=1.0), heard.by("a"))
    client.send(ask("b", 2, 1, arrival_s=1.1), heard.by("b"))
    client.run()
    assert [heard[name][-1].time_s for name in "ab"] == [2.25, 2.25]


def test_a_wait_that_a_cancel_made_pointless_leaves_the_next_request_its_own():
    client, heard = simulated(DynamicBatching(4, max_wait_s=5.0))
    for name, arrival_s in (("a", 0.0), ("b", 1.0), ("c", 30.0)):
        client.send(ask(name, 2, 1, arrival_s=arrival_s), heard.by(name))
    client.cancel("a", at_s=2.0)
    client.run()
    assert [heard[name][-1].time_s for name in "abc"] == [2.0, 7.0, 36.0]


# -- cancels


@pytest.mark.parametrize("at_s", [0.0, 0.5, 1.0, 1.5, 4.0, 99.0])
@pytest.mark.parametrize("times", [1, 2])
def test_a_cancel_at_any_time_gives_one_end(at_s, times):
    client, heard = simulated(StaticBatching(1))
    requests = [ask("a", 4, 3), ask("b", 4, 3)]
    for request in requests:
        client.send(request, heard.by(request.id))
    for _ in range(times):
        client.cancel("b", at_s=at_s)
    client.run()
    assert heard.ends("a")[0].reason == "length"
    assert heard.ends("b")[0].reason == ("length" if at_s > 6 else "cancelled")
    check_drained(client.engine)


def test_a_cancel_before_the_arrival_ends_it_and_it_never_runs():
    client, heard = simulated()
    request = ask("a", arrival_s=5.0)
    client.send(request, heard.by("a"))
    client.cancel("a", at_s=1.0)
    client.run()
    assert heard["a"] == [Finished(1.0, "a", "cancelled", 0)]
    assert request.status is Status.FINISHED and client.engine.log.events == []


def test_a_cancel_after_the_end_does_not_touch_a_later_request_of_that_id():
    client, heard = simulated()
    client.send(ask("a", max_tokens=1), heard.by("old"))
    client.cancel("a", at_s=3.0)
    client.loop.at(4.0, lambda: client.send(ask("a", arrival_s=5.0), heard.by("new")))
    client.run()
    assert heard.ends("old")[0].reason == heard.ends("new")[0].reason == "length"


def test_cancelling_somebody_unknown_does_nothing():
    client, _ = simulated()
    client.cancel("nobody")
    client.run()
    assert client.engine.log.events == []


@pytest.mark.parametrize("kind", ["submitted", "admitted", "tokens"])
def test_a_client_may_leave_from_within_its_listener(kind):
    client, heard = simulated()
    hear = heard.by("a")

    def leave(event):
        hear(event)
        if event.kind == kind:
            client.cancel("a")

    client.send(ask("a", 4, 8), leave)
    client.run()
    assert heard.ends("a")[0].reason == "cancelled"
    check_drained(client.engine)


# -- refused


def test_what_the_engine_refuses_ends_with_the_reason_and_the_others_go_on():
    client, heard = simulated()
    too_large, fine = ask("large", 10, 500), ask("fine")
    for request in (too_large, fine):
        client.send(request, heard.by(request.id))
    client.run()
    assert [event.kind for event in heard["large"]] == ["finished"]
    assert "pool" in heard["large"][0].error and heard["large"][0].reason == "error"
    assert too_large.finish_reason is FinishReason.ERROR and too_large.error
    assert heard.ends("fine")[0].reason == "length"


def test_an_id_in_use_is_refused_and_the_first_goes_on():
    client, heard = simulated()
    first, second = ask("a", 4, 3), ask("a", 6, 2)
    client.send(first, heard.by("first"))
    client.send(second, heard.by("second"))
    client.run()
    assert heard.ends("first")[0].reason == "length" and len(first.output_token_ids) == 3
    assert heard.ends("second")[0].reason == "error" and second.output_token_ids == []


def test_the_same_request_sent_twice_is_refused_once_and_its_record_stays_true():
    client, heard = simulated()
    request = ask("a", 4, 3)
    client.send(request, heard.by("first"))
    client.send(request, heard.by("again, at once"))
    client.loop.at(50.0, lambda: client.send(request, heard.by("again, after its end")))
    client.run()
    assert heard.ends("first")[0].reason == "length"
    for name in ("again, at once", "again, after its end"):
        assert [event.reason for event in heard[name]] == ["error"]
    assert request.finish_reason is FinishReason.LENGTH and request.error is None


# -- failures: nobody hangs


class Broken(ContentExecutor):
    """Fails at step `at`, in `launch` or `collect`, once."""

    def __init__(self, where: str, at: int):
        super().__init__(num_blocks=24)

        def fail(plan):
            if len(self.plans) == at:
                self.wipe()
                raise RuntimeError("device lost")

        setattr(self, f"on_{where}", fail)


@pytest.mark.parametrize("where", ["launch", "collect"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_lost_executor_ends_every_request_and_later_ones_are_served(where, at):
    client = LocalClient(content_engine(executor=Broken(where, at)), EventLoop(VirtualClock()))
    heard = Heard()
    requests = [ask(f"r{n}", 6, 6) for n in range(4)]
    for request in requests:
        client.send(request, heard.by(request.id))
    later = ask("later", [*requests[0].prompt_token_ids, 1])
    later.arrival_s = 1e-9
    client.loop.at(0.0, lambda: client.send(later, heard.by("later")))
    client.run()
    failed = [r for r in requests if heard.ends(r.id)[0].reason == "error"]
    assert failed and all("device lost" in r.error for r in failed)
    assert heard.ends("later")
    for request in (*requests, later):
        check_output(request)
    check_drained(client.engine)
    again = ask("again", later.prompt_token_ids, arrival_s=1.0)
    client.send(again, heard.by("again"))
    client.run()
    assert heard.ends("again")[0].reason == "length"
    check_output(again)


def test_one_lost_executor_does_not_stop_another_on_the_same_loop():
    one = LocalClient(content_engine(executor=Broken("collect", 2)), EventLoop(VirtualClock()))
    two, heard = LocalClient(content_engine(), one.loop), Heard()
    one.send(ask("one"), heard.by("one"))
    two.send(ask("two"), heard.by("two"))
    one.loop.run()
    assert heard.ends("one")[0].reason == "error" and heard.ends("two")[0].reason == "length"


BUGS = {
    "raises": lambda snapshot: 1 / 0,
    "runs nobody": lambda snapshot: Decision(),
    "decides nothing": lambda snapshot: None,
    "only ever waits": lambda snapshot: Decision(wake_at_s=snapshot.now_s + 1.0),
    "waits for now": lambda snapshot: Decision(wake_at_s=snapshot.now_s),
}


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_a_bad_policy_ends_every_request_and_is_heard_of(bug):
    class Policy:
        decide = staticmethod(bug)

    client, heard = simulated(Policy())
    client.send(ask("a"), heard.by("a"))
    client.send(ask("b"), heard.by("b"))
    with pytest.raises((ConfigError, ZeroDivisionError)):
        client.run()
    while client.engine.has_unfinished or set(heard) != {e.request_id for e in ends(heard)}:
        with pytest.raises((ConfigError, ZeroDivisionError)):
            client.run()
    for name in "ab":
        assert heard.ends(name)[0].reason == "error" and heard.ends(name)[0].error
    check_drained(client.engine)


@pytest.mark.parametrize("kind", ["submitted", "admitted", "tokens", "finished"])
def test_a_listener_that_raises_is_heard_of_and_leaves_no_one_waiting(kind):
    client, heard = simulated()

    def bad(event):
        if event.kind == kind:
            raise OSError("the connection is gone")

    client.send(ask("bad"), bad)
    client.send(ask("good"), heard.by("good"))
    with pytest.raises(OSError):
        client.run()
    client.run()
    assert heard.ends("good")
    client.send(ask("later", arrival_s=99.0), heard.by("later"))
    client.run()
    assert heard.ends("later")[0].reason == "length"
    check_drained(client.engine)

"""A cheap model, a check, a dearer model: on the virtual clock, over two simulated engines."""

from __future__ import annotations

import pytest

from minserve.cached_service import CachedService
from minserve.cascaded_service import CascadedService, Route
from minserve.client import LocalClient
from minserve.clock import EventLoop, VirtualClock
from minserve.engine import Engine
from minserve.errors import ConfigError
from minserve.execution.simulated import CostModel, SimulatedExecutor
from minserve.northstar.caching import policy_table
from minserve.output import Detokenizer
from minserve.request import FinishReason, Identity, Request, SamplingParams
from minserve.reuse.key import Message, ModelTuple, Wording
from minserve.reuse.response import ExactCache
from minserve.reuse.stores import MemoryStore
from minserve.reuse.validation import Validation
from minserve.scheduling.admission import Admission, AdmissionPolicy, Refuse
from minserve.service import Ended, Piece, Service, Started

EOS, JSON = 0, {"type": "json_object"}


class Model:
    """An engine that says `text` to everybody, a character a second, and its service."""

    def __init__(self, loop: EventLoop, text: str, policy: AdmissionPolicy | None = None) -> None:
        said = [*map(ord, text), EOS]
        self.text = text
        executor = SimulatedExecutor(
            64,
            4,
            cost=CostModel(1.0, 0, 0, 0),
            eos_token_ids=frozenset({EOS}),
            token=lambda row: said[row.output_position],
        )
        self.engine = Engine(executor)
        admission = policy and Admission(self.engine.log, policy)
        self.service = Service(LocalClient(self.engine, loop), self.detokenizer, admission)

    def detokenizer(self, stop):
        return Detokenizer(lambda ids: "".join(chr(i) for i in ids if i != EOS), stop)


def in_twice_the_tokens(request, wording, id):
    """The dearer model's tokens: twice as many, so that one can tell whose they are."""
    return Request(
        id, request.prompt_token_ids * 2, request.sampling, request.identity, arrival_s=0.0
    )


class World:
    def __init__(self, cheap="nonsense", dear='{"a": 1}', dear_policy=None, request_of=None):
        self.loop = EventLoop(VirtualClock())
        self.cheap, self.dear = Model(self.loop, cheap), Model(self.loop, dear, dear_policy)
        validation = Validation(policy_table(), NAMED)
        self.cascade = CascadedService(
            self.cheap.service,
            "cheap",
            [Route("dear", self.dear.service, request_of or in_twice_the_tokens)],
            lambda w: validation.check_of(w.answer_class, w.messages, w.response_format),
        )
        self.service, self.heard, self.attempts = self.cascade, {}, []
        self.cascade.on_attempt = lambda request, attempt: self.attempts.append(attempt)

    def with_cache(self):
        validation = Validation(policy_table(), NAMED)
        cache = ExactCache(MemoryStore(), policy_table(), validate=validation.is_right)
        self.service = CachedService(
            self.cascade, cache, ModelTuple("m"), now_s=self.loop.clock.now_s
        )
        return self

    def ask(self, id="r", at_s=0.0, response_format=JSON, answer_class="default", **sampling):
        params = SamplingParams(**{"max_tokens": 40, **sampling})
        request = Request(id, (1, 2, 3), params, Identity("t", "s"), arrival_s=at_s)
        wording = Wording(answer_class, (Message("user", "Ask"),), response_format=response_format)
        heard = self.heard.setdefault(id, [])
        self.loop.at(at_s, lambda: self.service.submit(request, heard.append, wording=wording))

    def told(self, id="r"):
        """(started, text, end) of a request that ended once."""
        heard = self.heard[id]
        ends = [output for output in heard if isinstance(output, Ended | Refuse)]
        assert len(ends) == 1 and heard[-1] is ends[0]
        started = [output for output in heard if isinstance(output, Started)]
        text = "".join(output.text for output in heard if isinstance(output, Piece))
        return (started or [None])[0], text, ends[0]


def says_yes(messages):
    return (lambda text: text == "yes") if messages else None


NAMED = dict.fromkeys(("grounded", "grounded_chat", "grounded_report"), says_yes)


def run(world, **asked):
    world.ask(**asked)
    world.loop.run()
    for model in (world.cheap, world.dear):
        assert not model.engine.has_unfinished
        model.engine.check_integrity()
    assert not world.cascade._running
    return world.told()


def test_a_right_answer_of_the_cheap_model_is_told_and_nobody_else_is_asked():
    world = World(cheap='{"b": 2}')
    started, text, end = run(world)
    assert (started.route, text, end.reason) == ("cheap", '{"b": 2}', FinishReason.STOP)
    assert [attempt.outcome for attempt in world.attempts] == ["passed"]


def test_a_wrong_answer_is_not_shown_and_the_dearer_model_is_asked_in_its_own_tokens():
    world = World()
    started, text, end = run(world)
    assert (started.route, text, end.reason) == ("dear", '{"a": 1}', FinishReason.STOP)
    told = [(a.model, a.outcome, a.num_prompt_tokens, a.num_output_tokens) for a in world.attempts]
    assert told == [("cheap", "failed", 3, 9), ("dear", "passed", 6, 9)]
    assert started.attempts == tuple(world.attempts)
    assert world.attempts[0].ended_s == world.attempts[1].began_s < world.attempts[1].ended_s


def test_when_every_answer_fails_there_is_none():
    world = World(dear="also nonsense")
    started, text, end = run(world)
    assert (started, text, end.reason) == (None, "", FinishReason.ERROR)
    assert (end.error.code, end.error.status, end.error.may_retry) == (
        "no_valid_answer",
        502,
        False,
    )
    assert "nonsense" not in end.error


def test_a_truncated_answer_is_not_a_whole_one_even_if_its_check_would_pass():
    world = World(cheap="{}" + " " * 50)
    assert run(world)[0].route == "dear"
    assert world.attempts[0].outcome == "length"


def test_a_request_without_a_check_is_told_as_it_comes_by_the_first_model_alone():
    world = World()
    started, text, _ = run(world, response_format=None)
    assert (started.route, text) == ("", "nonsense")
    assert len(world.heard["r"]) > 5 and not world.attempts


def test_a_class_of_the_policy_table_brings_its_check():
    assert run(World(cheap="yes"), response_format=None, answer_class="policy")[0].route == "cheap"
    world = World(cheap="no", dear="yes")
    assert run(world, response_format=None, answer_class="policy")[0].route == "dear"


def test_a_check_that_raises_has_failed():
    world = World(cheap='{"b": 2}')
    answers = iter([ZeroDivisionError(), None])

    def check(text):
        if error := next(answers):
            raise error
        return True

    world.cascade._check_of = lambda wording: check
    assert run(world)[0].route == "dear"


@pytest.mark.parametrize("at_s", [0.0, 0.5, 4.0, 9.5, 12.0, 17.5])
def test_a_cancel_reaches_whoever_is_at_it_and_is_heard_once(at_s):
    world = World()
    world.loop.at(at_s, lambda: world.service.cancel("r"))
    _, text, end = run(world)
    assert (text, end.reason) == ("", FinishReason.CANCELLED)
    world.service.cancel("r")


def test_a_dearer_model_without_room_refuses_and_says_when_to_return():
    closed = AdmissionPolicy(max_defer_s=0.0)
    world = World(dear_policy=closed)
    admission = world.dear.service.admission
    admission.ask = lambda *told, **more: Refuse(7.0, "full", "queue_full")
    started, text, end = run(world)
    assert (started, text, end) == (None, "", Refuse(7.0, "full", "queue_full"))
    assert [attempt.outcome for attempt in world.attempts] == ["failed", "queue_full"]


def test_who_cannot_be_asked_is_passed_over():
    world = World(request_of=lambda request, wording, id: None)
    assert run(world)[2].error.code == "no_valid_answer"


@pytest.mark.parametrize("where", ["cheap", "dear"])
def test_whoever_cannot_be_submitted_is_asked_of_the_next_or_ends(where):
    world = World()

    def fails(*told):
        raise ZeroDivisionError

    getattr(world, where).service.submit = fails
    _, text, end = run(world)
    if where == "cheap":
        assert text == '{"a": 1}'
    else:
        assert end.error.code == "no_valid_answer"
    assert world.attempts[where == "dear"].outcome == "error"


def test_the_cache_keeps_the_answer_that_passed_with_its_route_and_no_other():
    world = World().with_cache()
    for number in range(3):  # the second and third join the first's flight, or hit
        world.ask(f"r{number}", at_s=number * 30.0, temperature=0.0)
    world.ask("joins", at_s=1.0, temperature=0.0)
    world.loop.run()
    assert [world.told(id)[0].cache for id in ("r0", "joins", "r1", "r2")] == [
        "miss",
        "shared",
        "hit",
        "hit",
    ]
    assert {world.told(id)[0].route for id in world.heard} == {"dear"}
    assert {world.told(id)[1] for id in world.heard} == {'{"a": 1}'}
    assert len(world.attempts) == 2


def test_what_no_model_could_answer_rightly_is_not_kept():
    world = World(dear="also nonsense").with_cache()
    run(world, temperature=0.0)
    assert world.service.cache.store.size() == (0, 0)


def test_another_format_is_another_request_to_the_cache():
    world = World(dear='{"a": 1}').with_cache()
    schema = {"type": "object", "required": ["a"]}
    named = {"type": "json_schema", "json_schema": {"schema": schema}}
    world.ask("r0", temperature=0.0)
    world.ask("r1", at_s=50.0, temperature=0.0, response_format=named)
    world.loop.run()
    assert world.told("r1")[0].cache == "miss"


def test_a_cascade_of_one_is_none():
    world = World()
    with pytest.raises(ConfigError):
        CascadedService(world.cheap.service, "cheap", [], lambda wording: None)

"""Reuse replayed with a model that reads its evidence: what is saved, and that nothing leaks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minserve.clock import EventLoop, VirtualClock
from minserve.events import Finished, TokensProduced
from minserve.northstar.caching import policy_table
from minserve.northstar.reuse import COLUMNS, Engine, ReuseReplay, grounded, make_asks, run_all
from minserve.reuse.embedding import HashedNgrams
from minserve.reuse.key import Scope
from minserve.reuse.policy import PolicyTable

CACHES = ("exact cache", "semantic cache")


class Reader:
    """An engine that answers with the evidence lines that share most words with the question."""

    def __init__(self, loop, is_wrong=lambda messages: False):
        self.loop, self.is_wrong = loop, is_wrong
        self.texts, self.num_calls = [""], 0

    def encode_chat(self, messages):
        self.texts.append(self._answer(messages))
        return [len(self.texts) - 1]

    def decode(self, token_ids):
        return "".join(self.texts[t] for t in token_ids)

    def send(self, request, listener=lambda event: None):
        self.num_calls += 1
        at_s = self.loop.clock.now_s() + 1.0
        (number,) = request.prompt_token_ids

        def end():
            listener(TokensProduced(at_s, request.id, (number,)))
            listener(Finished(at_s, request.id, "stop", 1))

        self.loop.at(at_s, end)

    def cancel(self, request_id):
        """Whatever it has to say, it has said: the end comes in the same moment."""

    def _answer(self, messages):
        if self.is_wrong(messages):
            return "I am sure."
        evidence, _, question = messages[-1]["content"].partition("\nQuestion: ")
        lines = [line.removeprefix("- ") for line in evidence.splitlines()[1:]]
        said = [m["content"].rpartition("Question: ")[2] for m in messages[1:]]

        def of(asked, entity=""):
            words = set(asked.lower().strip("?. ").split()) | set(entity.lower().split())
            return max(lines, key=lambda line: len(words & set(line.lower().strip(".").split())))

        if question.startswith("Write a report on "):
            subject, _, attributes = question.removeprefix("Write a report on ").partition(": ")
            entity = "" if subject == "my account" else subject
            return " ".join(of(a, f"the of is {entity}") for a in attributes[:-1].split(", "))
        return of(" ".join(reversed(said)) if len(said) > 1 else question)


def engine(loop, name="reader", **options):
    client = Reader(loop, **options)
    return Engine(name, client, client.encode_chat, client.decode, lambda text: len(text.split()))


@pytest.fixture(scope="module")
def report():
    loop = EventLoop(VirtualClock())
    return run_all([engine(loop), engine(loop, "second")], loop, HashedNgrams(), 250)


def test_every_way_of_reuse_answers_as_well_and_calls_the_model_less(report):
    columns = report["columns"]
    assert list(columns) == list(COLUMNS)
    plain, exact, semantic = (columns[name] for name in ("no reuse", *CACHES))
    assert plain["qualified"] == exact["qualified"] == semantic["qualified"]
    assert plain["qualified"] > 0.8 * plain["requests"]
    assert 0 < exact["hits"] < semantic["hits"]
    for column in (exact, semantic):
        assert column["model_calls"] == column["requests"] - column["hits"]


def test_nothing_leaks_and_nothing_stale_or_false_is_served(report):
    for name, column in report["columns"].items():
        assert (column["leaks"], column["stale_hits"], column["false_hits"]) == (0, 0, 0), name
    assert report["authorisation"]["partition_before_look_up"] is True


def test_what_is_personal_is_never_a_hit(report):
    """The same words from two users: were they shared, account answers would be wrong."""
    found = (report["columns"][name]["by_kind"] for name in ("no reuse", "semantic cache"))
    plain, semantic = (kinds["account"] for kinds in found)
    assert plain == semantic


def test_a_policy_that_shares_what_is_personal_shows_as_leaks():
    """The counter can count: it does not read the cache's own opinion."""
    table = [
        replace(p, freshness_s=1e6, scope=Scope.TENANT) if p.name == "account" else p
        for p in policy_table()
    ]
    loop = EventLoop(VirtualClock())
    asks = [ask for ask in make_asks(600) if ask.question.kind == "account"]
    users = {}
    for ask in asks:
        users.setdefault(ask.identity.tenant, set()).add(ask.identity.subject)
    assert any(len(some) > 1 for some in users.values())
    replay = ReuseReplay([engine(loop)], loop, HashedNgrams(), PolicyTable(table))
    column = replay.run(asks, "exact cache")
    assert column.leaks > 0 and column.qualified < column.requests


def test_less_context_is_shorter_answers_as_well_and_says_what_it_left_out(report):
    plain, short = (report["columns"][name] for name in ("no reuse", "less context"))
    assert short["qualified"] >= plain["qualified"]
    assert short["lines_left_out"] > 0


def test_an_answer_from_a_cut_context_that_fails_its_check_is_asked_again_with_all_of_it():
    """This reader cannot do with fewer than three lines."""
    loop = EventLoop(VirtualClock())
    lost = engine(loop, is_wrong=lambda messages: messages[-1]["content"].count("\n- ") < 3)
    asks = [ask for ask in make_asks(60) if ask.question.kind == "account"]
    plain = ReuseReplay([lost], loop, HashedNgrams()).run(asks, "no reuse")
    short = ReuseReplay([lost], loop, HashedNgrams()).run(asks, "less context")
    assert plain.qualified == short.qualified == len(asks)
    assert short.escalations > 0 and short.model_calls == len(asks) + short.escalations


def test_a_cascade_escalates_what_fails_its_check_and_serves_the_second_answer():
    loop = EventLoop(VirtualClock())
    wrong = engine(loop, "cheap", is_wrong=lambda messages: len(messages[-1]["content"]) % 3 == 0)
    asks = make_asks(90)
    alone = ReuseReplay([wrong], loop, HashedNgrams()).run(asks, "no reuse")
    both = ReuseReplay([wrong, engine(loop, "dear")], loop, HashedNgrams()).run(asks, "cascade")
    assert both.escalations > 0 and both.qualified > alone.qualified
    assert both.model_calls == both.requests + both.escalations


def test_an_answer_is_grounded_if_it_says_what_the_evidence_says_about_what_was_asked():
    lines = ["The late fee of Umber Club is 5 EUR.", "The deposit of Umber Club is 9 EUR."]
    ask = "What is the late fee of Umber Club?"
    assert grounded(ask, "policy", lines, "The late fee of Umber Club is 5 EUR.")
    assert not grounded(ask, "policy", lines, "The deposit of Umber Club is 9 EUR.")
    assert not grounded(ask, "policy", lines, "The late fee of Umber Club is 6 EUR.")
    assert not grounded(ask, "policy", lines, "I am sure.")
    assert not grounded(ask, "policy", lines, "")
    report = "Write a report on Umber Club: late fee, deposit."
    assert grounded(report, "report", lines, " ".join(lines))
    assert not grounded(report, "report", lines, lines[0])

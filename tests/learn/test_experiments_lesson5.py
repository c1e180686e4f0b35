"""The experiments show what lesson 5 says they show, and could have shown otherwise."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from minserve.execution.simulated import SimulatedExecutor
from minserve.learn.experiments import lesson5 as lab
from minserve.learn.experiments import lesson5_context as context
from minserve.learn.experiments import lesson5_time as times
from minserve.learn.experiments import lesson5_words as near
from minserve.learn.parts_of_reuse import TaggedCache, cache_key, semantic_gate
from minserve.northstar.corpus import load_corpus
from minserve.northstar.questions import is_correct
from minserve.output import Detokenizer


class Letters:
    """A tokenizer that writes one letter a token, and reads every chat as the same."""

    folder = SimpleNamespace(name="oracle")

    def encode_chat(self, messages):
        return [7] * 20

    def detokenizer(self, stop=()):
        return Detokenizer(lambda ids: "".join(map(chr, ids)), stop)


class Oracle(SimulatedExecutor):
    """Writes `text`, whatever it is asked: the cache is on trial here, not a model."""

    END = 3

    def __init__(self):
        self.tokenizer, self.text = Letters(), ""
        super().__init__(512, token=self._letter, eos_token_ids=frozenset({self.END}))

    def _letter(self, row):
        text = self.text + chr(self.END)
        return ord(text[min(row.output_position, len(text) - 1)])


class Assistant(lab.Assistant):
    """Northstar's assistant with a model that is never wrong."""

    def ask(self, ask):
        self.service.client.engine.executor.text = ask.question.expected[ask.version]
        return super().ask(ask)


def monday(cache):
    assistant = Assistant(Oracle(), cache, max_tokens=200)
    assistant.ask_all(lab.monday())
    return assistant


def outcome(assistant):
    leaks = sum(served.is_leak for served in assistant.served)
    hits = sum(served.how == "hit" for served in assistant.served)
    return assistant.num_model_calls, hits, leaks


def test_key_and_table_both_have_to_be_right():
    assert outcome(monday(lab.shared_cache(lab.by_question))) == (3, 9, 7)
    assert outcome(monday(lab.shared_cache(cache_key))) == (5, 7, 5)
    assert outcome(monday(lab.shared_cache(cache_key, lab.NORTHSTAR))) == (9, 3, 0)
    without = monday(None)
    assert outcome(without) == (12, 0, 0) and all(s.is_right for s in without.served)


def test_a_bad_key_under_the_table_costs_right_answers_but_not_other_tenants_ones():
    served = monday(lab.shared_cache(lab.by_question, lab.NORTHSTAR)).served
    assert not any(one.is_leak for one in served)


def test_terms_that_changed_are_right_after_an_event_only(monkeypatch):
    monkeypatch.setattr(lab, "Assistant", lambda e, c: Assistant(e, c, max_tokens=200))
    rows = lab.change_of_terms(Oracle())
    assert [row[2:3] + row[4:] for row in rows] == [("hit", "wrong")] * 3 + [("miss", "right")] * 3


def test_other_words_are_served_and_another_product_is_not():
    assistant = Assistant(Oracle(), *lab.with_other_words(semantic_gate, cache_key), max_tokens=200)
    served = assistant.ask_all(lab.tuesday())
    assert [one.how for one in served].count("similar") == 2
    assert all(one.is_right for one in served)
    reckless = lab.with_other_words(near.cosine_alone, cache_key)
    served = Assistant(Oracle(), *reckless, max_tokens=200).ask_all(lab.tuesday())
    assert [one.verdict for one in served if one.how == "similar"].count("wrong") == 2


# -- time


def test_longer_lives_buy_hits_and_events_keep_them_from_going_stale():
    alone = [times.day(seconds, None) for seconds in (600, 3600, 86_400)]
    told = [times.day(seconds, 30.0) for seconds in (600, 3600, 86_400)]
    for days in (alone, told):
        assert [day.hit_rate for day in days] == sorted(day.hit_rate for day in days)
    assert alone[-1].stale_rate > 0.3 and alone[0].stale_rate < 0.01
    assert all(day.stale_rate < 0.005 for day in told)
    assert times.day(86_400, 0.0).stale_rate == 0 < times.day(86_400, 3600.0).stale_rate


def test_what_was_begun_before_an_event_is_not_stored_unless_it_asks_too_late():
    assert [found for _, found in times.race()][0] == "a miss"
    assert "right once" in times.race()[1][1]


def test_a_late_event_counts_the_hits_since_the_change():
    [incident], [line] = times.late_event()
    assert line == "3 stale hits before policy_changed arrived"
    assert (incident.num_hits, incident.happened_s, incident.noticed_s) == (3, 60.0, 120.0)


def test_a_crowd_is_one_call_with_single_flight_and_as_many_as_people_without():
    apart, shared = times.crowd(is_shared=False), times.crowd()
    assert (apart.num_model_calls, shared.num_model_calls) == (200, 1)
    assert max(shared.e2e_s) < max(apart.e2e_s) / 10
    gone = times.crowd(cancel_first=True)
    assert (gone.num_model_calls, len(gone.e2e_s), gone.num_cancelled) == (2, 199, 1)


def test_a_cache_shortens_the_tail_of_a_busy_minute():
    none, cached = times.busy_minute(None, count=200), times.busy_minute(TaggedCache, count=200)
    assert none[1] == "0%" != cached[1]
    assert float(cached[3]) < float(none[3])


def test_mistakes_go_wrong_and_the_reference_does_not():
    assert times.cut_short(times.Careless) == "'The refund window is'"
    assert "afresh" in times.cut_short()
    assert times.oldest_served_s() < 3600 < 24 * 3600 < times.oldest_served_s(times.Sliding)


def test_each_kind_of_event_removes_what_rests_on_it_and_no_more():
    rows = {event: (removed, served) for _, event, removed, served in times.events()}
    assert rows == {
        "source_changed": ("3 of 6", "3"),
        "policy_changed": ("4 of 6", "2"),
        "permission_changed": ("2 of 6", "4"),
        "data_deleted": ("2 of 6", "4"),
        "model_changed": ("4 of 6", "2"),
    }


def test_what_no_evidence_says_is_not_stored_where_it_is_checked():
    assert [row[1:] for row in times.unchecked()] == [
        ("stored", "stored"),
        ("stored", "not stored"),
    ]


def test_evidence_is_found_for_another_model_and_not_for_another_tenant():
    rows = {name: found for name, *found in times.evidence_apart()}
    assert rows["to a larger model"] == rows["a longer answer wanted"] == ["a miss", "found"]
    assert rows["another tenant"] == ["a miss", "a miss"]


# -- words


def test_near_misses_are_nearer_than_paraphrases():
    same = sorted(pair.cosine for pair in near.pairs() if pair.kind == near.SAME)
    other = sorted(pair.cosine for pair in near.pairs() if pair.kind != near.SAME)
    assert len(same) == 150 and len(other) == 226
    assert same[75] < other[113]


def test_a_gate_lowers_the_wrong_share_where_a_threshold_does_not():
    alone, gate = near.curve(near.cosine_alone), near.curve(semantic_gate)
    checked = near.curve(semantic_gate, near.engines_guards)
    for one, two, three in zip(alone, gate, checked, strict=True):
        assert one.num_false >= two.num_false >= three.num_false == 0
        assert one.num_right >= two.num_right >= three.num_right > 0
    at = {point.least: point for point in alone}
    assert at[0.75].false_rate > at[0.4].false_rate
    assert "act" not in gate[0].false_hits and "act" in alone[0].false_hits


def test_thresholds_by_intent_have_more_hits_than_a_strict_one_and_fewer_false_than_a_lenient_one():
    lenient, strict, own = near.thresholds()
    assert int(lenient[3]) > int(own[3]) == int(strict[3]) == 0
    assert int(lenient[2]) > int(own[2]) > int(strict[2])
    assert int(near.thresholds(margin=0.005)[2][3]) > 0


def test_looking_first_loses_hits_and_tells_strangers():
    looks, partitions = near.who_asked()
    assert int(looks[1].split()[0]) < int(partitions[1].split()[0])
    assert float(looks[2][:-1]) > 90 and 40 < float(partitions[2][:-1]) < 60


# -- context


def test_chosen_evidence_holds_what_is_asked_and_takes_a_fraction():
    corpus = load_corpus()

    def count(text):
        return len(text.split())

    for question in context.questions():
        everything = context.everything(question, corpus, count)
        chosen = context.chosen(question, corpus, count)
        sizes = [sum(count(m["content"]) for m in ms) for ms in (everything, chosen)]
        assert sizes[1] < sizes[0] / 3
        assert question.expected["v1"] in chosen[-1]["content"]
        assert is_correct(question, question.expected["v1"], "v1")


def test_contradictions_are_kept_and_omissions_named():
    selection = context.disputed()
    assert selection.contradictions == ("refund",)
    assert set(selection.citations) == {"terms/2024", "forum/17"}
    assert selection.notice.count("/") == 3


def test_a_tool_result_loses_what_its_schema_does_not_name():
    result, kept, left_out = context.tool_result()
    assert len(str(kept)) < len(str(result)) / 5
    assert "audit_log" not in str(kept) and "invoices[3:]" in left_out


@pytest.mark.slow
def test_a_model_reads_less_and_stops_when_the_answer_is_complete():
    from minserve.execution.torch_executor import TorchExecutor

    nano = TorchExecutor("nano", num_blocks=512, fast=False)
    asked = context.questions(2)
    needed = context.ask(nano, asked, context.chosen)
    assert needed.num_right == 2
    rows = context.outputs(nano, asked[:1])
    written = [int(row[2]) for row in rows]
    assert written == sorted(written, reverse=True) and written[-1] < written[0] / 5
    assert rows[-1][3] == "1 of 1"

"""The suites must reject what is wrong: each variant breaks the rule it is named for."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from dataclasses import asdict

import pytest

from minserve.learn.conformance import BROKEN, examine, suite_of
from minserve.reuse.guards import GuardedGate
from minserve.reuse.invalidation import tags_of
from minserve.reuse.key import CanonicalKey, partition_of


def first_broken(part, candidate):
    verdicts = [v for v in examine(suite_of(part), candidate) if v.state == BROKEN]
    assert verdicts, "no rule is broken"
    assert all(v.what and v.hint for v in verdicts)
    return {v.rule for v in verdicts}


def form_of(query):
    form = asdict(query)
    form["identity"] = {"scope": query.scope.value}
    if query.scope != "public":
        form["identity"] |= {
            "tenant": query.identity.tenant,
            "roles": sorted(query.identity.roles),
        }
    if query.scope == "subject":
        form["identity"]["subject"] = query.identity.subject
    for message in form["messages"]:
        message["content"] = unicodedata.normalize("NFC", message["content"])
    return form


def sha(form) -> str:
    return hashlib.sha256(json.dumps(form, sort_keys=True).encode()).hexdigest()


class Plain:
    """A learner's key, in a few lines: it keeps every rule."""

    def of(self, query):
        return sha(form_of(query))


class QuestionOnly(Plain):
    def of(self, query):
        return sha(query.question)


class NoTenant(Plain):
    def of(self, query):
        form = form_of(query)
        form["identity"].pop("tenant", None)
        return sha(form)


class Joined(Plain):
    def of(self, query):
        form = form_of(query)
        joined = f"{form.pop('policy_version')}{form.pop('corpus_snapshot')}"
        return sha(form | {"joined": joined})


class Text(Plain):
    def of(self, query):
        form = form_of(query)
        return sha(form | {"locale": str(form["locale"])})


class Folded(Plain):
    def of(self, query):
        form = form_of(query)
        for message in form["messages"]:
            message["content"] = " ".join(message["content"].split()).casefold()
        return sha(form)


class Compatible(Plain):
    def of(self, query):
        form = form_of(query)
        for message in form["messages"]:
            message["content"] = unicodedata.normalize("NFKC", message["content"])
        return sha(form)


class NotNormalised(Plain):
    def of(self, query):
        return sha(form_of(query) | {"messages": [asdict(m) for m in query.messages]})


class BuiltinHash(Plain):
    def of(self, query):
        return str(hash(json.dumps(form_of(query), sort_keys=True)))


class NoRoles(Plain):
    def of(self, query):
        form = form_of(query)
        form["identity"].pop("roles", None)
        return sha(form)


class DefaultTemperature(Plain):
    def of(self, query):
        form = form_of(query)
        form["decoding"]["temperature"] = query.decoding.temperature or 0.0
        return sha(form)


def without(name):
    class Without(Plain):
        def of(self, query):
            form = form_of(query)
            for place in (form, form["decoding"], form["model"]):
                place.pop(name, None)
            return sha(form)

    return Without


def test_a_key_of_a_few_lines_keeps_every_rule():
    assert {v.state for v in examine(suite_of("cache_key"), Plain)} == {"kept"}


@pytest.mark.parametrize(
    ("variant", "rule"),
    [
        (QuestionOnly, "tenants_are_separate"),
        (NoTenant, "tenants_are_separate"),
        (NoRoles, "scope_says_who_shares"),
        (Joined, "fields_do_not_slide"),
        (Text, "types_count"),
        (DefaultTemperature, "types_count"),
        (Folded, "different_questions_stay_apart"),
        (Compatible, "different_questions_stay_apart"),
        (NotNormalised, "nfc_is_one_spelling"),
        (BuiltinHash, "same_in_every_process"),
        *((without(name), "every_field_separates") for name in (
            "seed", "max_tokens", "stop", "tools", "adapter", "template", "tokenizer", "revision",
            "policy_version", "prompt_version", "corpus_snapshot", "tool_state", "locale", "top_p",
        )),
    ],
)  # fmt: skip
def test_a_wrong_key_is_rejected_by_the_rule_that_it_breaks(variant, rule):
    assert rule in first_broken("cache_key", variant)


class Small:
    """A learner's response cache, in a few lines: it keeps every rule."""

    def __init__(self, policies):
        self.policies, self.entries = policies, {}
        self.count, self.last = 0, {}

    def place(self, query):
        return partition_of(query), CanonicalKey().of(query)

    def allows(self, query):
        return self.policies[query.answer_class].allows(query)

    def get(self, query, now_s):
        if not self.allows(query):
            return None
        try:
            answer, created_s, _ = self.entries.get(self.place(query), (None, 0, ()))
        except Exception:
            return None
        if answer and now_s - created_s >= self.policies[query.answer_class].freshness_s:
            del self.entries[self.place(query)]
            return None
        return answer

    def num_events(self):
        return self.count

    def put(self, query, answer, now_s, since):
        if not self.is_complete(answer) or not self.allows(query):
            return False
        tags = tags_of(query, [source.id for source in answer.sources])
        if any(self.last.get(tag, 0) > since for tag in tags):
            return False
        try:
            self.entries[self.place(query)] = (answer, now_s, tags)
        except Exception:
            return False
        return True

    def is_complete(self, answer):
        return answer.finish_reason == "stop" and not answer.is_fallback and answer.text.strip()

    def invalidate(self, event, now_s):
        self.count += 1
        self.last |= {tag: self.count for tag in event.tags()}
        gone = [p for p, (_, _, tags) in self.entries.items() if set(tags) & set(event.tags())]
        for place in gone:
            del self.entries[place]
        return len(gone)


class OnePartition(Small):
    def place(self, query):
        return query.question


class NeverExpires(Small):
    def get(self, query, now_s):
        return super().get(query, 0.0)


class HitsExtend(Small):
    def get(self, query, now_s):
        answer = super().get(query, now_s)
        if answer:
            self.entries[self.place(query)] = (answer, now_s, ())
        return answer


class KeepsTruncated(Small):
    def is_complete(self, answer):
        return answer.finish_reason != "error" and not answer.is_fallback and answer.text.strip()


class KeepsApologies(Small):
    def is_complete(self, answer):
        return answer.finish_reason == "stop" and answer.text.strip()


class CachesAll(Small):
    def allows(self, query):
        return True


class FirstWins(Small):
    def put(self, query, answer, now_s, since):
        done = super().put
        return True if self.get(query, now_s) else done(query, answer, now_s, since)


class ClearsAll(Small):
    def invalidate(self, event, now_s):
        self.count += 1
        number = len(self.entries)
        self.entries.clear()
        return number


class ForgetsEvents(Small):
    def put(self, query, answer, now_s, since):
        return super().put(query, answer, now_s, self.count)


def test_a_cache_of_a_few_lines_keeps_every_rule():
    verdicts = examine(suite_of("response_cache"), Small)
    assert [v for v in verdicts if v.state != "kept"] == []


@pytest.mark.parametrize(
    ("variant", "rule"),
    [
        (OnePartition, "tenants_are_apart"),
        (NeverExpires, "freshness_ends"),
        (HitsExtend, "hits_do_not_extend"),
        (KeepsTruncated, "only_complete_answers"),
        (KeepsApologies, "only_complete_answers"),
        (CachesAll, "class_decides"),
        (FirstWins, "newest_wins"),
        (ClearsAll, "events_reach_what_they_name"),
        (ForgetsEvents, "no_answer_outlives_its_event"),
    ],
)
def test_a_wrong_cache_is_rejected_by_the_rule_that_it_breaks(variant, rule):
    assert rule in first_broken("response_cache", variant)


def test_counterexamples_show_the_calls_that_lead_there():
    verdicts = examine(suite_of("response_cache"), OnePartition)
    (broken,) = [v for v in verdicts if v.rule == "tenants_are_apart"]
    assert broken.example[0].startswith("put(policy of alder/anna")
    assert broken.example[-1].startswith("get(policy of marlow/mia")


class SmallGate:
    """A learner's semantic gate, in a few lines: it keeps every rule."""

    def __init__(self, verify):
        self.verify = verify

    def said(self, text):
        return text.lower().strip("?").replace(",", "").split()

    def same_polarity(self, a, b):
        no = {"not", "never", "without"}
        if sum(w in no for w in a) % 2 != sum(w in no for w in b) % 2:
            return False
        pairs = [("on", "off"), ("open", "close"), ("enable", "disable"), ("start", "stop")]
        return not any(x in a and y in b or y in a and x in b for x, y in pairs)

    def same_numbers(self, a, b):
        return sorted(w for w in a if w.isdigit()) == sorted(w for w in b if w.isdigit())

    def allows(self, asked, stored, cosine):
        a, b = self.said(asked), self.said(stored)
        if not a or not cosine > 0.8 or not self.same_polarity(a, b) or not self.same_numbers(a, b):
            return False
        try:
            return self.verify(asked, stored) is True
        except Exception:
            return False


class CosineOnly(SmallGate):
    def allows(self, asked, stored, cosine):
        return cosine > 0.8


class NoPolarity(SmallGate):
    def same_polarity(self, a, b):
        return True


class NoNumbers(SmallGate):
    def same_numbers(self, a, b):
        return True


class Raises(SmallGate):
    def allows(self, asked, stored, cosine):
        try_it = super().allows(asked, stored, cosine)
        return try_it if not asked.strip() else self.verify(asked, stored) is True and try_it


class Never(SmallGate):
    def allows(self, asked, stored, cosine):
        return False


@pytest.mark.parametrize("gate", [GuardedGate, SmallGate])
def test_a_gate_keeps_every_rule(gate):
    verdicts = examine(suite_of("semantic_gate"), gate)
    assert [v for v in verdicts if v.state != "kept"] == []


@pytest.mark.parametrize(
    ("variant", "rule"),
    [
        (CosineOnly, "opposites_are_refused"),
        (CosineOnly, "a_failing_check_is_a_no"),
        (CosineOnly, "empty_never_matches"),
        (NoPolarity, "negations_are_refused"),
        (NoNumbers, "numbers_are_refused"),
        (Raises, "a_failing_check_is_a_no"),
        (Never, "paraphrases_pass"),
    ],
)
def test_a_wrong_gate_is_rejected_by_the_rule_that_it_breaks(variant, rule):
    assert rule in first_broken("semantic_gate", variant)

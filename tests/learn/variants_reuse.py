"""Variants of the parts that reuse answers; see `variants` for the form of the tables."""

from __future__ import annotations

KEY = """
    import hashlib
    import json
    import unicodedata
    from dataclasses import asdict

    def cache_key(query):
        form = asdict(query)
        identity = form.pop("identity")
        if query.scope != "public":
            form["tenant"] = identity["tenant"]
            form["roles"] = sorted(identity["roles"])
        if query.scope == "subject":
            form["subject"] = identity["subject"]
        for message in form["messages"]:
            message["content"] = unicodedata.normalize("NFC", message["content"])
        text = json.dumps(form, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
"""
KEY_BY_HAND = """
    from dataclasses import fields, is_dataclass
    from hashlib import blake2b
    from unicodedata import normalize

    def written(value):
        "Typed, and as long as it says: nothing can slide."
        if is_dataclass(value):
            value = {f.name: getattr(value, f.name) for f in fields(value)}
        if isinstance(value, dict):
            value = [[name, value[name]] for name in sorted(value)]
        if isinstance(value, (list, tuple)):
            body = b"".join(written(item) for item in value)
            return b"list %d:" % len(value) + body
        body = str(value).encode("utf-8", "surrogatepass")
        return b"%s %d:" % (type(value).__name__.encode(), len(body)) + body

    def cache_key(query):
        identity = query.identity
        company = (identity.tenant, sorted(identity.roles))
        person = (*company, identity.subject)
        who = {"public": (), "tenant": company, "subject": person}[query.scope]
        turns = [(m.role, normalize("NFC", m.content), m.extra) for m in query.messages]
        names = [f.name for f in fields(query) if f.name not in ("identity", "messages")]
        rest = [(name, getattr(query, name)) for name in names]
        return blake2b(written([who, turns, rest])).hexdigest()
"""
CACHE = """
    from minserve.reuse.invalidation import tags_of
    from minserve.reuse.key import partition_of

    class ResponseCache:
        def __init__(self, policies, key):
            self.policies, self.key = policies, key
            self.entries = {}
            self.count, self.last = 0, {}

        def num_events(self):
            return self.count

        def place(self, query):
            if not self.policies[query.answer_class].allows(query):
                return None
            try:
                return partition_of(query), self.key(query)
            except Exception:
                return None

        def get(self, query, now_s):
            place = self.place(query)
            if place not in self.entries:
                return None
            answer, created_s, tags = self.entries[place]
            if now_s - created_s >= self.policies[query.answer_class].freshness_s:
                del self.entries[place]
                return None
            return answer

        def put(self, query, answer, now_s, since):
            place = self.place(query)
            if place is None or answer.finish_reason != "stop" or answer.is_fallback:
                return False
            if not answer.text.strip():
                return False
            tags = tags_of(query, [source.id for source in answer.sources])
            if any(self.last.get(tag, 0) > since for tag in tags):
                return False
            self.entries[place] = (answer, now_s, tags)
            return True

        def invalidate(self, event, now_s):
            self.count += 1
            for tag in event.tags():
                self.last[tag] = self.count
            gone = [p for p, entry in self.entries.items() if set(entry[2]) & set(event.tags())]
            for place in gone:
                del self.entries[place]
            return len(gone)
"""
CACHE_BY_LOG = """
    from minserve.errors import InvalidRequest
    from minserve.reuse.invalidation import tags_of
    from minserve.reuse.key import partition_of

    class ResponseCache:
        "Keeps every event, and every answer under the number of events it was made after."
        def __init__(self, policies, key):
            self.table, self.name = policies, key
            self.log, self.partitions = [], {}

        def num_events(self):
            return len(self.log)

        def get(self, query, now_s):
            try:
                shelf = self.partitions.get(partition_of(query), {})
                entry = shelf.get(self.name(query))
            except InvalidRequest:
                return None
            policy = self.table[query.answer_class]
            if entry is None or not policy.allows(query):
                return None
            return entry["answer"] if now_s < entry["born"] + policy.freshness_s else None

        def put(self, query, answer, now_s, since):
            whole = answer.finish_reason == "stop" and answer.text.strip() != ""
            if not whole or answer.is_fallback or not self.table[query.answer_class].allows(query):
                return False
            tags = set(tags_of(query, [s.id for s in answer.sources]))
            if any(tags.intersection(event.tags()) for event in self.log[since:]):
                return False
            try:
                shelf = self.partitions.setdefault(partition_of(query), {})
                shelf[self.name(query)] = {"answer": answer, "born": now_s, "tags": tags}
            except InvalidRequest:
                return False
            return True

        def invalidate(self, event, now_s):
            self.log.append(event)
            count = 0
            for shelf in self.partitions.values():
                for name in list(shelf):
                    if shelf[name]["tags"].intersection(event.tags()):
                        del shelf[name]
                        count += 1
            return count
"""
GATE = """
    from minserve.reuse.guards import NEGATIONS, OPPOSITES, words

    def semantic_gate(asked, stored, cosine, least, verify):
        a, b = words(asked), words(stored)
        if not a or not cosine >= least:
            return False
        if asked.strip().endswith("?") != stored.strip().endswith("?"):
            return False
        if sum(w in NEGATIONS for w in a) % 2 != sum(w in NEGATIONS for w in b) % 2:
            return False
        for one, other in OPPOSITES:
            if one & set(a) and other & set(b) or other & set(a) and one & set(b):
                return False
        if sorted(w for w in a if w.isdigit()) != sorted(w for w in b if w.isdigit()):
            return False
        try:
            return verify(asked, stored) is True
        except Exception:
            return False
"""
GATE_BY_TRAITS = """
    import re

    NO = re.compile(r"\\b(not|never|without)\\b")
    PAIRS = [("on", "off"), ("open", "close"), ("enable", "disable"), ("start", "stop")]

    def traits(text):
        said = re.findall(r"[a-z]+", text.lower())
        sides = [[w in said for w in pair] for pair in PAIRS]
        return {
            "act": text.strip()[-1:] == "?",
            "no": len(NO.findall(text.lower())) % 2,
            "sides": sides,
            "numbers": sorted(re.findall(r"[0-9]+", text)),
        }

    def semantic_gate(asked, stored, cosine, least, verify):
        if cosine >= least and asked.strip():
            if traits(asked) == traits(stored):
                try:
                    if verify(asked, stored) is True:
                        return True
                except Exception:
                    pass
        return False
"""

RIGHT = {
    "cache_key": ("cache_key", {"over JSON": KEY, "by hand": KEY_BY_HAND}),
    "response_cache": (
        "ResponseCache",
        {"by tags": CACHE, "by a log": CACHE_BY_LOG},
    ),
    "semantic_gate": ("semantic_gate", {"one check a time": GATE, "by traits": GATE_BY_TRAITS}),
}

WRONG = {
    "cache_key": {
        "bytes": (
            ".hexdigest()",
            ".digest()",
            "same_request_same_key",
            "a key is some text; this is b",
        ),
        "the question alone": (
            "text = json.dumps(form, sort_keys=True)",
            "text = query.question",
            "tenants_are_separate",
            "two tenants ask, and yet both have one key",
        ),
        "no tenant": (
            'form["tenant"] = identity["tenant"]',
            "pass",
            "tenants_are_separate",
            "two tenants ask, and yet both have one key",
        ),
        "no roles": (
            'form["roles"] = sorted(identity["roles"])',
            "pass",
            "scope_says_who_shares",
            "an admin may be told more",
        ),
        "no subject": (
            'form["subject"] = identity["subject"]',
            "pass",
            "scope_says_who_shares",
            "each has answers of their own in this scope",
        ),
        "who asks, always": (
            'if query.scope == "subject":',
            "if True:",
            "scope_says_who_shares",
            "they share answers in this scope",
        ),
        **{
            f"without {name}": (
                "text = json",
                f'form{place}.pop("{name}"); text = json',
                "every_field_separates",
                f"{name} differs",
            )
            for place, names in {
                '["decoding"]': ("seed", "max_tokens", "stop", "top_p"),
                '["model"]': ("revision", "tokenizer", "template", "adapter"),
                "": (
                    *("tools", "tool_state", "prompt_version", "policy_version"),
                    *("corpus_snapshot", "locale"),
                ),
            }.items()
            for name in names
        },
        "joined": (
            "json.dumps(form, sort_keys=True)",
            '"|".join(str(value) for value in form.values())',
            "fields_do_not_slide",
            "policy version and corpus differ",
        ),
        "a default temperature": (
            "text = json",
            'form["decoding"]["temperature"] = query.decoding.temperature or 0.0; text = json',
            "types_count",
            "omitted is not 0",
        ),
        "str() of a field": (
            "text = json",
            'form["locale"] = str(form["locale"]); text = json',
            "types_count",
            "the locales differ",
        ),
        "text as it came": (
            'unicodedata.normalize("NFC", message["content"])',
            'message["content"]',
            "nfc_is_one_spelling",
            "one text, spelt in two ways",
        ),
        "NFKC": (
            '"NFC"',
            '"NFKC"',
            "different_questions_stay_apart",
            "the questions differ",
        ),
        "lower case": (
            'message["content"])',
            'message["content"].lower())',
            "different_questions_stay_apart",
            "the questions differ",
        ),
        "JSON as it came": (
            "sort_keys=True",
            "sort_keys=False",
            "json_order_means_nothing",
            "the tools are equal",
        ),
        "hash()": (
            "hashlib.sha256(text.encode()).hexdigest()",
            "str(hash(text))",
            "same_in_every_process",
            "which every process salts anew",
        ),
    },
    "response_cache": {
        "finds nothing": (
            "            return answer\n",
            "            return None\n",
            "finds_what_was_stored",
            "'34 days' should be served; get returns None",
        ),
        "the question alone": (
            "return partition_of(query), self.key(query)",
            "return query.question",
            "tenants_are_apart",
            "another tenant asks the same",
        ),
        "no partition": (
            "return partition_of(query), self.key(query)",
            "return self.key(query)",
            "tenants_are_apart",
            "another tenant asks the same",
        ),
        "never expires": (
            "now_s - created_s >=",
            "created_s - created_s >=",
            "freshness_ends",
            "it is 100 s old",
        ),
        "one moment too long": (
            "now_s - created_s >=",
            "now_s - created_s >",
            "freshness_ends",
            "it is 100 s old",
        ),
        "hits extend": (
            "            return answer\n",
            "            self.entries[place] = (answer, now_s, tags)\n            return answer\n",
            "hits_do_not_extend",
            "hits must not extend its life",
        ),
        "keeps truncated answers": (
            'answer.finish_reason != "stop"',
            'answer.finish_reason == "error"',
            "only_complete_answers",
            "put returns True for an answer that ended with 'length'",
        ),
        "keeps apologies": (
            " or answer.is_fallback",
            "",
            "only_complete_answers",
            "that text stood in for a failure",
        ),
        "keeps empty answers": (
            "if not answer.text.strip():",
            "if not answer.text:",
            "only_complete_answers",
            "an empty answer is none",
        ),
        "caches all": (
            "if not self.policies[query.answer_class].allows(query):",
            "if False:",
            "class_decides",
            "put returns True, although it changes something",
        ),
        "any decoding": (
            "if not self.policies[query.answer_class].allows(query):",
            "policy = self.policies[query.answer_class]\n"
            "            if not policy.freshness_s or query.scope != policy.scope:",
            "class_decides",
            "put returns True, although decoding is random",
        ),
        "the first wins": (
            "self.entries[place] = (answer, now_s, tags)",
            "self.entries.setdefault(place, (answer, now_s, tags))",
            "newest_wins",
            "'58 days' should be served; get returns None",
        ),
        "one place for all without a key": (
            "except Exception:\n                return None",
            'except Exception:\n                return partition_of(query), ""',
            "what_has_no_key_is_a_miss",
            "put returns True for a request without a canonical form",
        ),
        "lets the key's error out": (
            "except Exception:\n                return None",
            "except KeyError:\n                return None",
            "what_has_no_key_is_a_miss",
            "key(query) raises NotCacheable, and so does put",
        ),
        "clears all": (
            "if set(entry[2]) & set(event.tags())]",
            "]",
            "events_reach_what_they_name",
            "2 entries rest on that; invalidate returns 4",
        ),
        "only sources": (
            "tags = tags_of(query, [source.id for source in answer.sources])",
            "tags = ['[\"source\",\"' + source.id + '\"]' for source in answer.sources]",
            "events_reach_what_they_name",
            "3 entries rest on that; invalidate returns 0",
        ),
        "does not count": (
            "return len(gone)",
            "return None",
            "events_reach_what_they_name",
            "invalidate returns None",
        ),
        "forgets events": (
            "if any(self.last.get(tag, 0) > since for tag in tags):",
            "if False:",
            "no_answer_outlives_its_event",
            "computed from a source that has changed meanwhile",
        ),
        "any event will do": (
            "if any(self.last.get(tag, 0) > since for tag in tags):",
            "if self.count > since:",
            "no_answer_outlives_its_event",
            "that event had nothing to do with it",
        ),
    },
    "semantic_gate": {
        "the same words": (
            "if not a or",
            "if a != b or",
            "paraphrases_pass",
            "they ask the same, and are near",
        ),
        "no return": (
            "return verify(asked, stored) is True",
            "verify(asked, stored) is True",
            "paraphrases_pass",
            "None: is a `return` missing?",
        ),
        "less than": (
            "not cosine >= least",
            "cosine < least",
            "what_is_far_is_refused",
            "they are not near",
        ),
        "one threshold": (
            "cosine >= least",
            "cosine >= 0.8",
            "threshold_is_the_intents_own",
            "this intent needs 0.95",
        ),
        "strictly above": (
            "cosine >= least",
            "cosine > least",
            "threshold_is_the_intents_own",
            "it is as near as it needs to be",
        ),
        "empty is equal": (
            "if not a or not",
            "if not",
            "empty_never_matches",
            "nothing was asked",
        ),
        "cosine alone": (
            "        if asked.strip()",
            "        return verify(asked, stored) is True\n        if asked.strip()",
            "an_order_is_no_question",
            "one asks how, the other wants it done",
        ),
        "one way only": (
            " or other & set(a) and one & set(b)",
            "",
            "opposites_are_refused",
            "they ask for opposite things",
        ),
        "negated question only": (
            "sum(w in NEGATIONS for w in a) % 2 != sum(w in NEGATIONS for w in b) % 2",
            "sum(w in NEGATIONS for w in a) > sum(w in NEGATIONS for w in b)",
            "negations_are_refused",
            "one negates the other",
        ),
        "as many numbers": (
            "sorted(w for w in a if w.isdigit()) != sorted(w for w in b if w.isdigit())",
            "sum(w.isdigit() for w in a) != sum(w.isdigit() for w in b)",
            "numbers_are_refused",
            "their numbers differ",
        ),
        "nothing is no objection": (
            "return verify(asked, stored) is True",
            "return verify(asked, stored) is not False",
            "a_failing_check_is_a_no",
            "verify says nothing, and the gate says True",
        ),
        "raises": (
            "except Exception:\n            return False",
            "except KeyError:\n            return False",
            "a_failing_check_is_a_no",
            "verify raises, and so does the gate",
        ),
    },
}

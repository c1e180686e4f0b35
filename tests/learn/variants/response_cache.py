"""Variants of `response_cache`; see `variants` for their form."""

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

RIGHT = (
    "ResponseCache",
    {"by tags": CACHE, "by a log": CACHE_BY_LOG},
)
WRONG = {
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
}

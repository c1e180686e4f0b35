"""Lab 5: what each kind of failure looks like, which rule it breaks, and where to look."""

from autograder.scoring.base import Advice

ADVICE = {
    "other_tenant": Advice(
        "a tenant was served another tenant's answer",
        "who asks chooses the partition before anything is looked up, on every path",
        "`key` and `shelf`: is the tenant part of both?",
    ),
    "other_user": Advice(
        "a user was served what another user was told in person",
        'an answer of scope "user" is that user\'s alone',
        "`key` and `shelf`, where the scope is 'user'",
    ),
    "no_reuse": Advice(
        "an answer that may be served was not",
        "the same request, and an honest paraphrase within its time, is answered from the cache",
        "what your key holds beyond what the answer depends on, and what your checks refuse",
    ),
    "service": Advice(
        "a newer answer did not replace the older one",
        "the last complete answer to a request is the one that is kept",
        "`put`, compared with the version that you were given",
    ),
    "field_ignored": Advice(
        "two requests that differ in a field were served one answer",
        "everything that an answer depends on is in its key",
        "which fields `key` reads",
    ),
    "fields_merge": Advice(
        "two different requests were served one answer, because their fields run into each other",
        "a key can be read back: it shows where each field begins and ends",
        "how `key` joins the fields, when a value holds the separator",
    ),
    "types_merge": Advice(
        "a value and another one that is written alike, or no value, were taken for the same",
        "None, 0, '' and 'None' are four different things",
        "`or`, `str` and defaults in `key`",
    ),
    "text_merge": Advice(
        "two different questions were taken for one",
        "of a text only its Unicode form (NFC) may be changed",
        "what `key` does to the question",
    ),
    "unstable": Advice(
        "another process gives the same request another key, or none",
        "the key is a text that depends on the request alone",
        "`hash()`, `id()`, counters and the order of sets in `key`",
    ),
    "stale_time": Advice(
        "an answer was served after its time was up",
        "an answer is fresh for `freshness_s` after it was put, however often it is served",
        "every place that reads or writes `stored_s`, and every path to an answer",
    ),
    "stale_policy": Advice(
        "an answer made under another policy version was served",
        "the versions that an answer rests on are part of the request",
        "`policy_version` in `key` and in `shelf`",
    ),
    "stale_source": Advice(
        "an answer was served although a source that it lists has changed",
        "an event reaches every answer that rests on what changed",
        "`is_hit_by`: all sources of an entry, on every path",
    ),
    "left_behind": Advice(
        "a user was deleted, and something that their request brought in was still served",
        "deleting a user removes all that their requests left, shared or not",
        "`is_hit_by` for 'user_deleted'",
    ),
    "incomplete": Advice(
        "an answer that was cut off, cancelled or failed was served again",
        "only a complete answer is kept",
        "the first lines of `put`",
    ),
    "says": Advice(
        "`put` did not return True for an answer that may be kept",
        "`put` says whether it kept the answer",
        "the last line of `put`",
    ),
    "lost": Advice(
        "an event removed answers that it does not make wrong",
        "an event reaches exactly the answers that rest on what changed",
        "`is_hit_by`, compared with the version that you were given",
    ),
    "stays": Advice(
        "the policy of a tenant changed, and its answers were still served",
        "'policy_changed' removes all answers of that tenant",
        "`is_hit_by`, compared with the version that you were given",
    ),
    "acts": Advice(
        "an order was answered from the cache, or its answer was kept",
        "an order is carried out, never replayed",
        "the act of both questions: in `put`, and in `asks_the_same`",
    ),
    "opposite": Advice(
        "a question was served the answer to its opposite",
        "nearness says nothing about the sense",
        "the sense of both questions in `asks_the_same`",
    ),
    "unsure": Advice(
        "another wording matched although a check did not hold",
        "intent known, listed and equal, and near enough for that intent: else it is a miss",
        "`asks_the_same`: thresholds of intents that are not listed, and `intent` None",
    ),
    "model_failed": Advice(
        "something was served or kept although the model gave no answer",
        "a check that fails is a check that says no",
        "the `except` branches",
    ),
    "calibrated": Advice(
        "`calibrate` gave other thresholds than the labelled pairs allow",
        "a threshold lies above every false pair of its intent, and lets at least one pair pass",
        "ties, intents without a false pair, and intents that no threshold serves",
    ),
    "raised": Advice(
        "your code raised an exception",
        "whatever is asked and whatever fails, a look-up ends in an answer or a miss",
        "the line named here",
    ),
}

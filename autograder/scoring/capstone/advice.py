"""The capstone: what each kind of failure looks like, which rule it breaks, and where to look."""

from autograder.scoring.base import Advice

ADVICE = {
    "tail": Advice(
        "the 95th percentile was not that of all answers of the class",
        "percentiles are never averaged: each class has one, over all its answers together",
        "`_ttft_p95_s`: does it see minutes, all classes, or the answers of one?",
    ),
    "intended": Advice(
        "the time to first token did not count from when the user asked",
        "a wait at the sender is a wait: time begins at intended_s (coordinated omission)",
        "`_ttft_p95_s`: which time does it subtract?",
    ),
    "late": Advice(
        "a deadline was counted from when the request was sent",
        "deadline_s counts from intended_s, like every time that is promised to a user",
        "`_is_in_time`",
    ),
    "attainment": Advice(
        "requests without an answer were missing from the deadlines",
        "kept deadlines are counted among all that had one, but for those that were cancelled",
        "`_attainment`: whom does it leave out of what it divides by?",
    ),
    "failures": Advice(
        "first tokens of failures were in the tail of the answers",
        "an answer is a record whose outcome is ok",
        "which records the percentile is of",
    ),
    "no_deadline": Advice(
        "requests without a deadline were counted as kept or missed",
        "who has no deadline is in no attainment; a class without any has None",
        "`_attainment`, compared with the version that you were given",
    ),
    "uncorrected": Advice(
        "the uncorrected tail was not what the sender saw",
        "uncorrected_p95_s is from sent_s, over the same answers",
        "the entry `uncorrected_p95_s`, compared with the version that you were given",
    ),
    "unqualified": Advice(
        "answers that are not right were counted as done",
        "a task is done when its answer came, is right, and reached nobody else",
        "`_is_done`",
    ),
    "leaked": Advice(
        "answers that leaked were counted as done",
        "an answer that reached somebody who may not have it is an incident, no success",
        "`_is_done`",
    ),
    "failed": Advice(
        "requests that ended badly, or not at all, were counted as done",
        "only an outcome of ok is an end; an accepted job is a promise",
        "`_is_done`",
    ),
    "twice": Advice(
        "a task with several records was not counted once",
        "a task counts once, if any of its attempts is good",
        "what `qualified` counts: records or tasks?",
    ),
    "idle": Advice(
        "the cost was not that of the rented time",
        "a replica costs the same when it idles, and after the last answer",
        "which seconds the price is multiplied by",
    ),
    "worse_kind": Advice(
        "one kind of answers got worse, and the gate let it pass",
        "each kind is compared with itself: a mean hides the one that fell",
        "how `gate` compares quality",
    ),
    "shares": Advice(
        "numbers of answers were compared where shares are due",
        "10 of 20 are as good as 50 of 100; both reports may have other traffic",
        "`_is_lower`: is it asked?",
    ),
    "unchecked": Advice(
        "a kind was not checked in the new run, and the gate let it pass",
        "what was not checked is not known, and what is not known does not pass",
        "kinds that are missing in the new report, or have no requests",
    ),
    "leak": Advice(
        "a run that leaked passed the gate, or not for that reason",
        "no leak passes, also if there were more before, or only a few",
        "what `gate` compares the leaks with",
    ),
    "uncounted": Advice(
        "a run that did not count its leaks passed the gate",
        "what was not counted is not 0",
        "the default for `leaks`",
    ),
    "weaker": Advice(
        "a weaker authorisation passed the gate, or an equal one did not",
        "each check that was True has to be True, by its own name",
        "checks that are missing, exchanged, or anything but True",
    ),
    "reasons": Advice(
        "not all reasons were given, or not in order",
        "the reasons are a sorted list of all that apply",
        "the end of `gate`, compared with the version that you were given",
    ),
    "passes": Advice(
        "a run that is no worse did not pass",
        "as good as before is good enough",
        "`gate`, compared with the version that you were given",
    ),
    "shared": Advice(
        "an answer that is personal may be kept for others, or not for its user",
        "what is personal stays with one user",
        "`exact_cache`",
    ),
    "prefix": Advice(
        "a prompt's beginning may be shared with the wrong people, or not where it could be",
        "a prefix has its own rule: personal ones per user, none below a block, orders as well",
        "`prefix_scope`",
    ),
    "replayed": Advice(
        "the answer to an order may be kept",
        "an order is carried out, never replayed",
        "`exact_cache`, when the request is consequential",
    ),
    "job": Advice(
        "work was made a job where somebody waits, or was not where nobody does",
        "a job is what nobody waits for, with much time or all the time; orders as well",
        "`is_job`: which facts does it read, and what is no deadline?",
    ),
    "priority": Advice(
        "somebody who waits does not go first, or work with a deadline not second",
        "2 for a person who waits, 1 for a deadline, 0 for the rest",
        "`priority`",
    ),
    "overload": Advice(
        "under overload the wrong thing is given up",
        "jobs are deferred; an order is carried out wholly or refused; the rest may be shortened",
        "`overload`",
    ),
    "unknown": Advice(
        "a fact that is not known was taken for the careless side",
        "None is taken for True",
        "the three facts at the beginning of `classify`",
    ),
    "prefill": Advice(
        "a prompt is read whole or in pieces where the other is due",
        "in pieces above CHUNK_TOKENS",
        "`prefill`, compared with the version that you were given",
    ),
    "open": Advice(
        "an answer for everybody is not shared within its tenant, or beyond it",
        "what is neither personal nor an order belongs to the tenant",
        "`exact_cache` and `prefix_scope`, compared with the version that you were given",
    ),
    "refused": Advice(
        "a variant was recommended that the gate refuses",
        "no figure makes up for a reason of the gate",
        "`recommend`: whom does it leave out?",
    ),
    "slow": Advice(
        "a variant was recommended that breaks a promise, or not the cheapest that keeps all",
        "every promise to every class is kept, or the variant will not do",
        "`_keeps_all`, and what happens if no variant is left",
    ),
    "unmeasured": Advice(
        "a variant was recommended although a figure that was promised is missing",
        "what was not measured keeps nothing",
        "figures that are None or not there",
    ),
    "no_cost": Advice(
        "a variant that answered nothing rightly was taken for a cheap one",
        "no cost is not a cost of 0",
        "`_rank`, and who gets that far",
    ),
    "cheapest": Advice(
        "of variants that all will do not the cheapest was recommended",
        "the cost per qualified task decides",
        "`_rank`, compared with the version that you were given",
    ),
    "ties": Advice(
        "of variants that cost the same not the simplest was recommended",
        "fewest changes, then the first by name",
        "`_rank`, compared with the version that you were given",
    ),
    "raised": Advice(
        "your code raised an exception",
        "whatever was measured or left out, each method ends in the answer that is due",
        "the line named here",
    ),
}

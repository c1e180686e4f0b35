"""The capstone's wrong and partial fixes: each one an edit of the solution, with its score."""

from __future__ import annotations

from autograder.bank.capstone import BANK, edited, row, solved_but

WAIT = 'each["first_s"] - each["intended_s"] for each in answers'
ANSWERS = 'answers = [each for each in group if each["outcome"] == "ok"]'
DONE = 'each["outcome"] == "ok" and each["is_qualified"] and not each["is_leak"]'
TASKS = 'len({each["task"] for each in records if self._is_done(each)})'
COST = "cost / qualified if qualified else None"
LEAKS = 'new.get("leaks") != 0'
AUTHORISED = 'any(new["authorisation"].get(name) is not True for name in checks)'
LOWER = """\
        if not after or not after["requests"]:
            return True
"""
CROSS = 'after["qualified"] * before["requests"] < before["qualified"] * after["requests"]'
PERSONAL = 'personal = request["is_personal"] is not False'
WAITS = 'waits = request["is_interactive"] is not False'
MINUTES = """\
minutes = {}
        for each in answers:
            wait_s = each["first_s"] - each["intended_s"]
            minutes.setdefault(each["intended_s"] // 60, []).append(wait_s)
        tails = [self._p95(waits_s) for waits_s in minutes.values()]
        return sum(tails) / len(tails) if tails else None"""
NOISE = 'after["qualified"] + 1 < before["qualified"] * after["requests"] / before["requests"]'
EXACT = 'exact_cache = "none" if acts else owner'
UNSURE_OWNER = """\
exact_cache = "tenant" if request["is_personal"] else owner
        exact_cache = "none" if acts else exact_cache"""
UNSURE_ORDER = 'exact_cache = "none" if request["is_consequential"] is None else owner'
JOB = "not waits and (deadline_s is None or deadline_s >= JOB_DEADLINE_S)"
REFUSED = 'not each["refused"] and has_cost'
RANK = '(cost or 0.0, len(each["changes"]), each["name"])'
SLOW = "if told_s is None or told_s > limit_s:"
LATE = "if told is None or told < least:"

WRONG = [
    row(
        "wrong: from the send",
        lambda: edited((WAIT, WAIT.replace("intended", "sent"))),
        (0, 3, 3, 3, 3, 3),
        contains="coordinated omission",
        through_nbgrader=True,
    ),
    row(
        "wrong: the tail of all classes together",
        lambda: edited(
            ("self._ttft_p95_s(group) for name, group", "self._ttft_p95_s(records) for name, group")
        ),
        (0, 3, 3, 3, 3, 3),
        contains="percentiles are never averaged",
    ),
    row(
        "wrong: the mean for the tail",
        lambda: edited(("percentile(values, 0.95) if", "sum(values) / len(values) if")),
        (0, 3, 3, 3, 3, 3),
    ),
    row(
        "wrong: the mean of the minutes' tails",
        lambda: edited((f"return self._p95([{WAIT}])", MINUTES)),
        (0, 3, 3, 3, 3, 3),
        contains="percentiles are never averaged",
    ),
    row(
        "wrong: first tokens of failures",
        lambda: edited(
            (ANSWERS, 'answers = [each for each in group if each["first_s"] is not None]')
        ),
        (0, 3, 3, 3, 3, 3),
        contains="an answer is a record whose outcome is ok",
    ),
    row(
        "wrong: deadlines from the send",
        lambda: edited(
            ('each["ended_s"] - each["intended_s"]', 'each["ended_s"] - each["sent_s"]')
        ),
        (0, 3, 3, 3, 3, 3),
        contains="deadline_s counts from intended_s",
    ),
    row(
        "wrong: who cancelled has missed the deadline",
        lambda: edited(
            (' and each["outcome"] != "cancelled"', ""),
        ),
        (0, 3, 3, 3, 3, 3),
        contains="but for those that were cancelled",
    ),
    row(
        "wrong: no deadline is a kept one",
        lambda: edited(
            ('each["deadline_s"] is not None and ', ""),
            (
                'each["ended_s"] - each["intended_s"] <= each["deadline_s"]',
                'each["ended_s"] - each["intended_s"] <= (each["deadline_s"] or math.inf)',
            ),
        ),
        (1, 3, 3, 3, 3, 3),
        contains="who has no deadline is in no attainment",
    ),
    row(
        "wrong: the uncorrected tail is corrected too",
        lambda: edited(
            ('each["first_s"] - each["sent_s"]', 'each["first_s"] - each["intended_s"]')
        ),
        (1, 3, 3, 3, 3, 3),
        contains="was not what the sender saw",
    ),
    row(
        "wrong: whatever came is done",
        lambda: edited((DONE, 'each["outcome"] == "ok" and not each["is_leak"]')),
        (3, 0, 3, 3, 3, 3),
        contains="answers that are not right were counted",
    ),
    row(
        "wrong: a leak is done",
        lambda: edited((DONE, 'each["outcome"] == "ok" and each["is_qualified"]')),
        (3, 0, 3, 3, 3, 3),
        contains="an incident, no success",
    ),
    row(
        "wrong: an accepted job is done",
        lambda: edited((DONE, DONE.replace('== "ok"', 'in ("ok", "unfinished")'))),
        (3, 0, 3, 3, 3, 3),
        contains="an accepted job is a promise",
    ),
    row(
        "wrong: records for tasks",
        lambda: edited((TASKS, "sum(self._is_done(each) for each in records)")),
        (3, 0, 3, 3, 3, 3),
        contains="a task counts once",
    ),
    row(
        "wrong: the time until the last answer",
        lambda: edited(("paid_s = rented_s", 'paid_s = max(each["ended_s"] for each in records)')),
        (3, 0, 3, 3, 3, 3),
        contains="the same when it idles",
    ),
    row(
        "wrong: nothing done is free",
        lambda: edited((COST, "cost / qualified if qualified else 0.0")),
        (3, 0, 3, 3, 3, 3),
    ),
    row(
        "wrong: numbers for shares",
        lambda: edited((CROSS, 'after["qualified"] < before["qualified"]')),
        (3, 3, 0, 3, 3, 3),
        contains="both reports may have other traffic",
    ),
    row(
        "wrong: quality of all kinds together",
        lambda: edited(
            (
                'self._is_lower(before, new["quality"].get(kind))\n'
                '            for kind, before in base["quality"].items()',
                'self._is_lower(*({key: sum(each[key] for each in told["quality"].values()) for key'
                ' in ("requests", "qualified")} for told in (base, new)))\n'
                "            for _ in range(1)",
            )
        ),
        (3, 3, 0, 3, 3, 3),
        contains="a mean hides the one that fell",
    ),
    row(
        "wrong: one answer more or less is noise",
        lambda: edited((CROSS, NOISE)),
        (3, 3, 0, 3, 3, 3),
        contains="a mean hides the one that fell",
    ),
    row(
        "wrong: better than before does not pass",
        lambda: edited((CROSS, CROSS.replace("<", "!="))),
        (3, 3, 1, 3, 3, 3),
        contains="as good as before is good enough",
    ),
    row(
        "wrong: what was not checked passes",
        lambda: edited((LOWER, LOWER.replace("True", "False"))),
        (3, 3, 0, 3, 3, 3),
        contains="what is not known does not pass",
    ),
    row(
        "wrong: no more leaks than before",
        lambda: edited((LEAKS, 'new.get("leaks", 1) > base.get("leaks", 0)')),
        (3, 3, 0, 3, 3, 3),
        contains="no leak passes",
    ),
    row(
        "wrong: leaks that were not counted",
        lambda: edited((LEAKS, 'new.get("leaks", 0) != 0')),
        (3, 3, 0, 3, 3, 3),
        contains="what was not counted is not 0",
    ),
    row(
        "wrong: a check that is missing holds",
        lambda: edited((AUTHORISED, 'any(not new["authorisation"].get(n, True) for n in checks)')),
        (3, 3, 0, 3, 3, 3),
        contains="by its own name",
    ),
    row(
        "wrong: only the first reason",
        lambda: edited(("return sorted(reasons)", "return sorted(reasons)[:1]")),
        (3, 3, 1, 3, 3, 3),
        contains="not all reasons were given",
    ),
    row(
        "wrong: as good as before does not pass",
        lambda: edited((CROSS, CROSS.replace("<", "<="))),
        (3, 3, 0, 3, 3, 3),
        contains="as good as before is good enough",
    ),
    row(
        "wrong: personal answers for the tenant",
        lambda: edited(
            (
                'exact_cache = "none" if acts else owner',
                'exact_cache = "none" if acts else "tenant"',
            )
        ),
        (3, 3, 3, 0, 3, 3),
        contains="what is personal stays with one user",
    ),
    row(
        "wrong: orders are kept",
        lambda: edited(('exact_cache = "none" if acts else owner', "exact_cache = owner")),
        (3, 3, 3, 0, 3, 3),
        contains="carried out, never replayed",
    ),
    row(
        "wrong: nothing of an order is shared",
        lambda: edited(
            (
                'owner if request["num_shared_tokens"] >= BLOCK_TOKENS else "none"',
                'owner if request["num_shared_tokens"] >= BLOCK_TOKENS and not acts else "none"',
            )
        ),
        (3, 3, 3, 0, 3, 3),
        contains="a prefix has its own rule",
    ),
    row(
        "wrong: only what may be personal is the user's",
        lambda: edited((EXACT, UNSURE_OWNER)),
        (3, 3, 3, 0, 3, 3),
        contains="stays with one user",
    ),
    row(
        "wrong: only what may be an order is not kept",
        lambda: edited((EXACT, UNSURE_ORDER)),
        (3, 3, 3, 0, 3, 3),
        contains="never replayed",
    ),
    row(
        "wrong: a block is not enough",
        lambda: edited(('request["num_shared_tokens"] >=', 'request["num_shared_tokens"] >')),
        (3, 3, 3, 0, 3, 3),
        contains="none below a block",
    ),
    row(
        "wrong: jobs are shortened",
        lambda: edited(('"defer" if is_job else ', "")),
        (3, 3, 3, 0, 3, 3),
        contains="jobs are deferred",
    ),
    row(
        "wrong: no deadline is no time",
        lambda: edited((JOB, "not waits and (deadline_s or 0) >= JOB_DEADLINE_S")),
        (3, 3, 3, 0, 3, 3),
        contains="what is no deadline?",
    ),
    row(
        "wrong: a job while somebody waits",
        lambda: edited((JOB, "deadline_s is None or deadline_s >= JOB_DEADLINE_S")),
        (3, 3, 3, 0, 3, 3),
        contains="a job is what nobody waits for",
    ),
    row(
        "wrong: the limit itself is no job",
        lambda: edited((JOB, JOB.replace(">=", ">"))),
        (3, 3, 3, 0, 3, 3),
    ),
    row(
        "wrong: work without a deadline before one with",
        lambda: edited(("1 if deadline_s is not None else 0", "1 if deadline_s is None else 0")),
        (3, 3, 3, 0, 3, 3),
        contains="1 for a deadline",
    ),
    row(
        "wrong: orders are shortened",
        lambda: edited(('"refuse" if acts else "shorten"', '"shorten"')),
        (3, 3, 3, 0, 3, 3),
        contains="carried out wholly or refused",
    ),
    row(
        "wrong: not known is not personal",
        lambda: edited((PERSONAL, 'personal = bool(request["is_personal"])')),
        (3, 3, 3, 0, 3, 3),
        contains="None is taken for True",
    ),
    row(
        "wrong: not known is nobody",
        lambda: edited((WAITS, 'waits = bool(request["is_interactive"])')),
        (3, 3, 3, 0, 3, 3),
    ),
    row(
        "wrong: all prompts are read whole",
        lambda: edited(
            ('"chunked" if request["num_prompt_tokens"] > CHUNK_TOKENS else "whole"', '"whole"')
        ),
        (3, 3, 3, 1, 3, 3),
        contains="in pieces above CHUNK_TOKENS",
    ),
    row(
        "wrong: each user has an own cache",
        lambda: edited(('"user" if personal else "tenant"', '"user"')),
        (3, 3, 3, 1, 3, 3),
        contains="belongs to the tenant",
    ),
    row(
        "wrong: the gate is not asked",
        lambda: edited((REFUSED, "has_cost")),
        (3, 3, 3, 3, 0, 3),
        contains="no figure makes up",
    ),
    row(
        "wrong: only the tail is promised",
        lambda: edited((LATE, "if told is None:")),
        (3, 3, 3, 3, 0, 3),
        contains="every promise to every class",
    ),
    row(
        "wrong: a missing figure keeps its promise",
        lambda: edited((SLOW, "if told_s is not None and told_s > limit_s:")),
        (3, 3, 3, 3, 0, 3),
        contains="what was not measured keeps nothing",
    ),
    row(
        "wrong: no cost is cheapest",
        lambda: edited((REFUSED, 'not each["refused"]')),
        (3, 3, 3, 3, 0, 3),
        contains="no cost is not a cost of 0",
    ),
    row(
        "wrong: exactly at the limit is too late",
        lambda: edited((SLOW, SLOW.replace(" > ", " >= "))),
        (3, 3, 3, 3, 0, 3),
    ),
    row(
        "wrong: the dearest",
        lambda: edited((RANK, RANK.replace("cost or 0.0", "-(cost or 0.0)"))),
        (3, 3, 3, 3, 1, 3),
    ),
    row(
        "wrong: equal ones by name alone",
        lambda: edited((RANK, RANK.replace(' len(each["changes"]),', ""))),
        (3, 3, 3, 3, 1, 3),
        contains="fewest changes",
    ),
    row(
        "partial: right calculator, untouched test",
        lambda: solved_but("capstone-regression"),
        (3, 3, 3, 3, 3, 0),
    ),
    row(
        "partial: untouched calculator, right test",
        lambda: solved_but("capstone-calculator"),
        (0, 0, 0, 0, 0, 3),
        through_nbgrader=True,
    ),
    row(
        "partial: a test of the sender alone",
        lambda: solved_but(
            "capstone-regression",
            "def test_plan(make_plan):\n"
            "    plan = make_plan(1.0, {'ttft_p95_s': {}, 'attainment': {}})\n"
            "    late = record('late', 'batch', 0.0, 3.0, 4.0, sent_s=2.0)\n"
            "    figures = plan.figures([late], 10.0)\n"
            "    assert math.isclose(figures['ttft_p95_s']['batch'], 3.0)",
        ),
        (3, 3, 3, 3, 3, 1),
        contains="counts answers that are not right",
    ),
    row(
        "partial: a test of quality and leaks alone",
        lambda: solved_but(
            "capstone-regression",
            "def test_plan(make_plan):\n"
            "    plan = make_plan(1.0, {'ttft_p95_s': {}, 'attainment': {}})\n"
            "    wrong = record('wrong', 'batch', 0.0, 3.0, 4.0, is_qualified=False)\n"
            "    assert plan.figures([wrong], 10.0)['cost_per_qualified'] is None\n"
            "    leaky = report({'chat': (2, 1)}, leaks=5)\n"
            "    assert 'leak' in plan.gate(leaky, leaky)",
        ),
        (3, 3, 3, 3, 3, 2),
        contains="got round to it",
    ),
    row(
        "partial: a test that asks for an order of keys",
        lambda: solved_but(
            "capstone-regression",
            BANK.solution("capstone-regression")
            + "\n    assert list(figures)[0] == 'ttft_p95_s'\n",
        ),
        (3, 3, 3, 3, 3, 0),
        contains="correct implementation",
    ),
]

"""The capstone's scenarios: each draws what only one promise can get wrong."""

from __future__ import annotations

import random
from typing import Any

from autograder.scoring.capstone.world import CHECKS, CLASSES, FAILURES, KINDS, Values, World
from autograder.scoring.stories import Story

# -- the tail and the deadlines


def bad_minute(world: World, rng: random.Random) -> None:
    """Classes of their own speed, and a bad stretch that is a twelfth of the time."""
    records = []
    for name, slow_s in zip(rng.sample(CLASSES, 3), (5.0, 12.0, 30.0), strict=True):
        for _ in range(rng.randint(100, 160)):
            asked_s = rng.uniform(0, 600)
            wait_s = rng.uniform(0.2, 0.4) + (slow_s if asked_s < 60 else 0)
            records.append(world.record(asked_s, wait_s, wait_s + 1, **{"class": name}))
    when = "ten minutes of three classes, with one bad minute"
    world.check_figures("tail", when, records, "ttft_p95_s")


def sent_late(world: World, rng: random.Random) -> None:
    records = []
    for _ in range(rng.randint(20, 40)):
        asked_s, late_s = rng.uniform(0, 50), rng.uniform(1, 3)
        wait_s = late_s + rng.uniform(0.1, 0.3)
        records.append(world.record(asked_s, wait_s, 8, sent_s=asked_s + late_s))
    world.check_figures("intended", "a sender that is late", records, "ttft_p95_s")


def due_from_asking(world: World, rng: random.Random) -> None:
    """In time from the send, and too late from the asking, for some."""
    records = []
    for number in range(rng.randint(20, 40)):
        asked_s, late_s = rng.uniform(0, 50), rng.uniform(1, 2) * (number % 3)
        records.append(
            world.record(asked_s, late_s + 0.1, late_s + 1, sent_s=asked_s + late_s, deadline_s=2.0)
        )
    world.check_figures("late", "deadlines and a sender that is late", records, "attainment")


def failures(world: World, rng: random.Random) -> None:
    """Every outcome, with a deadline; and the quick first tokens of failures."""
    records = [world.record(rng.uniform(0, 50), 2.0, rng.choice((3, 5))) for _ in range(12)]
    for outcome in FAILURES:
        for _ in range(rng.randint(1, 5)):
            records.append(world.failure(rng.uniform(0, 50), outcome))
    for _ in range(rng.randint(1, 5)):
        records.append(world.failure(rng.uniform(0, 50), "cancelled"))
    records.append(world.failure(51.0, "error", **{"class": "batch"}))
    records.append(world.failure(51.0, "cancelled", **{"class": "standard"}))
    world.check_figures("attainment", "every outcome", records, "attainment")
    world.check_figures("failures", "every outcome", records, "ttft_p95_s")


def no_deadlines(world: World, rng: random.Random) -> None:
    records = [world.record(rng.uniform(0, 50), 0.2, 3.0) for _ in range(rng.randint(5, 9))]
    records += [world.record(1.0, 0.2, 99.0, deadline_s=None) for _ in range(rng.randint(5, 9))]
    records.append(world.record(2.0, 0.2, 1.0, deadline_s=None, **{"class": "batch"}))
    when = "some requests have no deadline, and a whole class has none"
    world.check_figures("no_deadline", when, records, "attainment")


def uncorrected(world: World, rng: random.Random) -> None:
    records = []
    for _ in range(rng.randint(10, 20)):
        late_s = rng.uniform(0, 2)
        asked_s, wait_s = rng.uniform(0, 50), late_s + rng.uniform(0.1, 0.4)
        records.append(world.record(asked_s, wait_s, 5, sent_s=asked_s + late_s))
    world.check_figures("uncorrected", "", records, "uncorrected_p95_s")


# -- what a right answer costs


def counted(kind: str, when: str, **change: Any):
    """A story in which some records differ from good ones in one thing."""

    def play(world: World, rng: random.Random) -> None:
        good = [world.record(rng.uniform(0, 50), 0.2, 1) for _ in range(rng.randint(5, 9))]
        bad = [world.record(3.0, 0.2, 1, **change) for _ in range(rng.randint(3, 9))]
        world.check_figures(kind, when, good + bad, "qualified")
        world.check_figures(kind, f"{when}, and nothing else", bad, "qualified")

    return play


def redelivered(world: World, rng: random.Random) -> None:
    """Retries and redeliveries: the first attempt failed, or both came through."""
    records = [world.record(rng.uniform(0, 50), 0.2, 1) for _ in range(rng.randint(5, 9))]
    for each in list(records):
        records.append(world.record(60.0, 0.2, 1, task=each["task"]))
    failed = world.failure(3.0, rng.choice(FAILURES))
    records += [failed, world.record(4.0, 0.2, 1, task=failed["task"])]
    world.check_figures("twice", "tasks that were done twice or tried again", records, "qualified")


def rented(world: World, rng: random.Random) -> None:
    records = [world.record(rng.uniform(0, 50), 0.2, 1) for _ in range(rng.randint(5, 9))]
    world.check_figures("idle", "a replica that was idle for long", records, "cost_per_qualified")
    failed = [world.failure(3.0, "error")]
    world.check_figures("idle", "nothing was done rightly", failed, "cost_per_qualified")


# -- the gate


def shares(rng: random.Random) -> dict[str, tuple[int, int]]:
    """Half to nine tenths of 40 to 80 answers of each kind, an even number of both."""
    made = {}
    for kind in KINDS:
        requests = 2 * rng.randint(20, 40)
        made[kind] = (requests, 2 * round(rng.uniform(0.25, 0.45) * requests))
    return made


def one_kind_worse(world: World, rng: random.Random) -> None:
    """One answer less in one kind, and all the others right."""
    base = shares(rng)
    kind = rng.choice(KINDS)
    new = {name: (n, n) for name, (n, _) in base.items()} | {
        kind: (base[kind][0], base[kind][1] - 1)
    }
    when = "one kind got worse, the others better"
    world.check_gate("worse_kind", when, world.report(base), world.report(new), "quality")
    fewer = {name: (n // 2, right // 2) for name, (n, right) in base.items()}
    when = "the same shares, of half as many requests"
    world.check_gate("shares", when, world.report(base), world.report(fewer))
    more = {name: (2 * n, 2 * right - 2) for name, (n, right) in base.items()}
    when = "lower shares, of twice as many requests"
    world.check_gate("shares", when, world.report(base), world.report(more), "quality")


def not_checked(world: World, rng: random.Random) -> None:
    base, kind = shares(rng), rng.choice(KINDS)
    fewer = {name: told for name, told in base.items() if name != kind}
    when = "a kind was not checked any more"
    world.check_gate("unchecked", when, world.report(base), world.report(fewer), "quality")
    none = world.report(base | {kind: (0, 0)})
    world.check_gate("unchecked", when, world.report(base), none, "quality")


def leaks(world: World, rng: random.Random) -> None:
    base, new = world.report(shares(rng)), None
    for before in (0, rng.randint(3, 9)):
        new = base | {"leaks": rng.randint(1, 3)}
        when = "a few leaks" if not before else "fewer leaks than before"
        world.check_gate("leak", when, base | {"leaks": before}, new, "leak")
    uncounted = {name: value for name, value in base.items() if name != "leaks"}
    world.check_gate("uncounted", "leaks were not counted", base, uncounted, "leak")


def weaker(world: World, rng: random.Random) -> None:
    base, check = world.report(shares(rng)), rng.choice(CHECKS)
    others = {name: True for name in CHECKS if name != check}
    new = base | {"authorisation": others | {"another": True}}
    world.check_gate("weaker", "a check was exchanged for another", base, new, "authorisation")
    for value in (False, None, "skipped", 1):
        new = base | {"authorisation": others | {check: value}}
        world.check_gate("weaker", "a check did not hold any more", base, new, "authorisation")
    world.check_gate("weaker", "a check that never held", new, new)


def all_at_once(world: World, rng: random.Random) -> None:
    base = world.report(shares(rng))
    new = world.report(dict.fromkeys(KINDS, (10, 0))) | {"leaks": 3 * len(KINDS)}
    new["authorisation"] = {CHECKS[0]: False}
    reasons = ("authorisation", "leak", "quality")
    world.check_gate("reasons", "everything got worse", base, new, *reasons)


def fine(world: World, rng: random.Random) -> None:
    told = shares(rng)
    base = world.report(told)
    new = world.report({name: (n, right + 1) for name, (n, right) in told.items()})
    world.check_gate("passes", "nothing got worse", base, base)
    world.check_gate("passes", "every kind got better", base, new)


# -- what may be done with which work


def facts(kind: str, when: str, names: tuple[str, ...], *changes: Values):
    """A story of requests with these facts, of which some of the table's lines are looked at."""

    def play(world: World, rng: random.Random) -> None:
        for change in changes:
            for _ in range(4):
                world.check_request(kind, when, world.request(**change), *names)

    return play


ORDER, ASK = {"is_consequential": True}, {"is_consequential": False}
MINE, OURS = {"is_personal": True}, {"is_personal": False}
SOMEBODY, NOBODY = {"is_interactive": True}, {"is_interactive": False}

personal = facts("shared", "personal questions", ("exact_cache",), ASK | MINE)
personal_prefix = facts("prefix", "personal prompts", ("prefix_scope",), MINE)
orders = facts("replayed", "orders", ("exact_cache",), ORDER)
order_prefix = facts("prefix", "orders", ("prefix_scope",), ORDER | MINE)
block = facts(
    "prefix",
    "a block",
    ("prefix_scope",),
    MINE | {"num_shared_tokens": 15},
    MINE | {"num_shared_tokens": 16},
)
order_job = facts("job", "orders that can wait", ("is_job",), ORDER | NOBODY | {"deadline_s": 30.0})
waiting = facts("job", "somebody waits", ("is_job",), SOMEBODY, SOMEBODY | {"deadline_s": None})
no_deadline = facts("job", "nobody waits", ("is_job",), NOBODY | {"deadline_s": None}, NOBODY)
first = facts("priority", "", ("priority",), SOMEBODY, NOBODY, {"deadline_s": None})
ladder = facts(
    "overload", "", ("overload",), ORDER | SOMEBODY, ASK | SOMEBODY, NOBODY | {"deadline_s": None}
)
lengths = facts("prefill", "", ("prefill",), {"num_prompt_tokens": 256}, {"num_prompt_tokens": 257})
questions = facts("open", "questions for all", ("exact_cache", "prefix_scope"), ASK | OURS)
unknown = facts(
    "unknown",
    "a fact is not known",
    ("exact_cache", "prefix_scope", "overload"),
    {"is_personal": None} | ASK | SOMEBODY,
    {"is_consequential": None} | MINE | SOMEBODY,
)
unknown_waiting = facts(
    "unknown",
    "nobody knows whether somebody waits",
    ("is_job", "overload", "priority"),
    {"is_interactive": None, "deadline_s": 90.0},
)


# -- the choice


def draw_objectives(world: World, rng: random.Random) -> None:
    world.objectives = {
        "ttft_p95_s": {name: rng.uniform(0.2, 2.0) for name in CLASSES[:2]},
        "attainment": {name: rng.uniform(0.8, 0.95) for name in CLASSES},
    }


def measured(world: World, rng: random.Random, cost: float | None, num_changes: int = 1) -> Values:
    """A variant that keeps every objective, some exactly."""
    names = ("exact cache", "prefix reuse", "continuous", "jobs", "chunks")
    limits, least = world.objectives["ttft_p95_s"], world.objectives["attainment"]
    return {
        "name": f"{rng.getrandbits(32):08x}",
        "changes": rng.sample(names, num_changes),
        "figures": {
            "ttft_p95_s": {n: limit * rng.choice((0.3, 0.9, 1.0)) for n, limit in limits.items()},
            "uncorrected_p95_s": dict.fromkeys(limits, 0.01),
            "attainment": {n: rng.choice((told, 0.99)) for n, told in least.items()},
            "qualified": 100,
            "cost_per_qualified": cost,
        },
        "refused": [],
    }


def with_figure(each: Values, name: str, kind: str, value: Any) -> Values:
    """The variant, with one figure replaced; left out if the value is "missing"."""
    table = {**each["figures"][name], kind: value}
    if value == "missing":
        del table[kind]
    return {**each, "figures": {**each["figures"], name: table}}


def choose(world: World, rng: random.Random, kind: str, when: str, tempting: list[Values]) -> None:
    """One of three good ones is due beside what tempts, and the cheapest if nothing does."""
    good = [measured(world, rng, cost) for cost in (2.0, 3.0, 4.0)]
    told = world.told("recommend", rng.sample([*good, *tempting], 3 + len(tempting)))
    names = [each["name"] for each in (good if tempting else good[:1])]
    world.check(kind, type(told) is str and told in names, when)
    if tempting:
        told = world.told("recommend", tempting)
        world.check(kind, told is None, f"{when}, and no other")


def refused(world: World, rng: random.Random) -> None:
    draw_objectives(world, rng)
    for reason in ("leak", "quality", "authorisation"):
        bad = measured(world, rng, 0.5) | {"refused": [reason]}
        choose(world, rng, "refused", "a variant that the gate refuses", [bad])


def breaks(world: World, rng: random.Random) -> None:
    draw_objectives(world, rng)
    cheap = measured(world, rng, 0.5)
    for name, limit in world.objectives["ttft_p95_s"].items():
        bad = with_figure(cheap, "ttft_p95_s", name, limit * 1.01)
        choose(world, rng, "slow", "one class waits too long", [bad])
    for name, least in world.objectives["attainment"].items():
        bad = with_figure(cheap, "attainment", name, least * 0.99)
        choose(world, rng, "slow", "one class misses too many deadlines", [bad])


def exactly(world: World, rng: random.Random) -> None:
    draw_objectives(world, rng)
    each = measured(world, rng, 2.0)
    each["figures"] |= world.objectives
    told = world.told("recommend", [each])
    world.check("slow", told == each["name"], "every promise is kept exactly")


def unmeasured(world: World, rng: random.Random) -> None:
    draw_objectives(world, rng)
    cheap = measured(world, rng, 0.5)
    for table in ("ttft_p95_s", "attainment"):
        name = rng.choice(list(world.objectives[table]))
        for value in (None, "missing"):
            bad = with_figure(cheap, table, name, value)
            choose(world, rng, "unmeasured", "a figure is missing", [bad])
    nothing = measured(world, rng, None)
    choose(world, rng, "no_cost", "a variant without a right answer has no cost", [nothing])


def plain_choice(world: World, rng: random.Random) -> None:
    draw_objectives(world, rng)
    choose(world, rng, "cheapest", "", [])


def ties(world: World, rng: random.Random) -> None:
    """The first by name has the most changes."""
    draw_objectives(world, rng)
    many = [measured(world, rng, 2.0, count) for count in (3, 1, 1, 2)]
    many.sort(key=lambda each: each["name"])
    many[0]["changes"], many[1]["changes"] = ["a", "b", "c"], ["a"]
    due = min(each["name"] for each in many if len(each["changes"]) == 1)
    rng.shuffle(many)
    world.check("ties", world.told("recommend", many) == due, "some are equally cheap")


STORIES: dict[str, tuple[Story, ...]] = {
    "capstone-tail": (
        Story(bad_minute, ("tail",)),
        Story(sent_late, ("intended",)),
        Story(due_from_asking, ("late",)),
        Story(failures, ("attainment", "failures")),
        Story(no_deadlines, ("no_deadline",), is_gate=True),
        Story(uncorrected, ("uncorrected",), is_gate=True),
    ),
    "capstone-cost": (
        Story(
            counted("unqualified", "answers that are not right", is_qualified=False),
            ("unqualified",),
        ),
        Story(counted("leaked", "answers that leaked", is_leak=True), ("leaked",)),
        Story(counted("failed", "requests that failed", outcome="error"), ("failed",)),
        Story(counted("failed", "jobs that are not done", outcome="unfinished"), ("failed",)),
        Story(redelivered, ("twice",)),
        Story(rented, ("idle",)),
    ),
    "capstone-gate": (
        Story(one_kind_worse, ("worse_kind", "shares")),
        Story(not_checked, ("unchecked",)),
        Story(leaks, ("leak", "uncounted")),
        Story(weaker, ("weaker",)),
        Story(all_at_once, ("reasons",), is_gate=True),
        Story(fine, ("passes",), is_gate=True),
    ),
    "capstone-classes": (
        Story(personal, ("shared",)),
        Story(personal_prefix, ("prefix",)),
        Story(order_prefix, ("prefix",)),
        Story(block, ("prefix",)),
        Story(orders, ("replayed",)),
        Story(order_job, ("job",)),
        Story(waiting, ("job",)),
        Story(no_deadline, ("job",)),
        Story(first, ("priority",)),
        Story(ladder, ("overload",)),
        Story(unknown, ("unknown",)),
        Story(unknown_waiting, ("unknown",)),
        Story(lengths, ("prefill",), is_gate=True),
        Story(questions, ("open",), is_gate=True),
    ),
    "capstone-choice": (
        Story(refused, ("refused",)),
        Story(breaks, ("slow",)),
        Story(exactly, ("slow",)),
        Story(unmeasured, ("unmeasured", "no_cost")),
        Story(ties, ("ties",), is_gate=True),
        Story(plain_choice, ("cheapest",), is_gate=True),
    ),
}

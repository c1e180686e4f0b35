# ruff: noqa: F821  the notebook's first cell imports these names
# A third right way: small objects with one duty each; the class only asks them.
from collections import defaultdict
from dataclasses import dataclass


@dataclass
class Attempt:
    told: dict

    @property
    def came(self):
        return self.told["outcome"] == OUTCOMES[0]

    @property
    def is_usable(self):
        return self.came and self.told["is_qualified"] and not self.told["is_leak"]

    @property
    def is_due(self):
        return self.told["deadline_s"] is not None and self.told["outcome"] != OUTCOMES[-1]

    @property
    def is_kept(self):
        took_s = self.told["ended_s"] - self.told["intended_s"]
        return self.is_due and self.came and not took_s > self.told["deadline_s"]

    def wait_s(self, since):
        return self.told["first_s"] - self.told[since]


def tail(attempts, since):
    waits_s = [attempt.wait_s(since) for attempt in attempts if attempt.came]
    return percentile(waits_s, 0.95) if waits_s else None


def kept(attempts):
    flags = [attempt.is_kept for attempt in attempts if attempt.is_due]
    return flags.count(True) / len(flags) if flags else None


class Care:
    """A fact, or the careful side where it is not known."""

    def __init__(self, request):
        self.request = request

    def __getattr__(self, name):
        known = self.request[name]
        return True if known is None else known


def can_wait(facts, deadline_s):
    if facts.is_interactive:
        return False
    return deadline_s is None or not deadline_s < JOB_DEADLINE_S


class EfficiencyPlan:
    def __init__(self, price_per_hour, objectives):
        self.price_per_hour = price_per_hour
        self.limits_s, self.least = objectives["ttft_p95_s"], objectives["attainment"]

    def figures(self, records, rented_s):
        by_class, by_task = defaultdict(list), defaultdict(bool)
        for attempt in map(Attempt, records):
            by_class[attempt.told["class"]].append(attempt)
            by_task[attempt.told["task"]] |= attempt.is_usable
        count = sum(by_task.values())
        return {
            "ttft_p95_s": {name: tail(some, "intended_s") for name, some in by_class.items()},
            "uncorrected_p95_s": {name: tail(some, "sent_s") for name, some in by_class.items()},
            "attainment": {name: kept(some) for name, some in by_class.items()},
            "qualified": count,
            "cost_per_qualified": (rented_s * self.price_per_hour) / (3600 * count)
            if count
            else None,
        }

    def gate(self, base, new):
        try:
            is_worse = any(
                after["qualified"] * before["requests"] < before["qualified"] * after["requests"]
                or not after["requests"]
                for before, after in (
                    (before, new["quality"][kind])
                    for kind, before in base["quality"].items()
                    if before["requests"]
                )
            )
        except KeyError:
            is_worse = True
        held = {name for name in base["authorisation"] if base["authorisation"][name] is True}
        still = {name for name in new["authorisation"] if new["authorisation"][name] is True}
        found = {
            "quality": is_worse,
            "leak": new.get("leaks", 1) > 0,
            "authorisation": held - still,
        }
        return sorted(name for name in found if found[name])

    def classify(self, request):
        facts, deadline_s = Care(request), request["deadline_s"]
        whose = "user" if facts.is_personal else "tenant"
        is_job = can_wait(facts, deadline_s)
        ladder = [("defer", is_job), ("refuse", facts.is_consequential), ("shorten", True)]
        return dict(
            exact_cache="none" if facts.is_consequential else whose,
            prefix_scope=whose if request["num_shared_tokens"] >= BLOCK_TOKENS else "none",
            prefill="whole" if request["num_prompt_tokens"] <= CHUNK_TOKENS else "chunked",
            priority=2 if facts.is_interactive else 0 if deadline_s is None else 1,
            is_job=is_job,
            overload=next(rung for rung, applies in ladder if applies),
        )

    def recommend(self, variants):
        good = [v for v in variants if not v["refused"] and self.keeps(**v["figures"])]
        good.sort(key=lambda v: v["name"])
        good.sort(key=lambda v: len(v["changes"]))
        good.sort(key=lambda v: v["figures"]["cost_per_qualified"])
        return good[0]["name"] if good else None

    def keeps(self, ttft_p95_s, attainment, cost_per_qualified, **other):
        late = [n for n, s in self.limits_s.items() if not self.known(ttft_p95_s, n, math.inf) <= s]
        few = [n for n, s in self.least.items() if not self.known(attainment, n, -1) >= s]
        return cost_per_qualified is not None and not late and not few

    @staticmethod
    def known(table, name, worst):
        told = table.get(name)
        return worst if told is None else told

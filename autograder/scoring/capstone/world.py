"""The capstone's world: drawn records, reports, requests and variants, and what is due for them."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

from autograder.harness import Raised, refuse
from autograder.scoring.base import Finding, Session

CLASS = "EfficiencyPlan"
CLASSES = ("interactive", "standard", "batch")
KINDS = ("policy", "account", "chat", "report")
CHECKS = ("from server records", "partition first", "scopes kept", "keys versioned")
FAILURES = ("error", "rejected", "unfinished")
Values = dict[str, Any]


@dataclass
class World:
    """Calculators under test, one fresh object for each question."""

    session: Session
    rng: random.Random
    found: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.price = self.rng.uniform(1.0, 9.0)
        self.objectives: Values = {"ttft_p95_s": {}, "attainment": {}}

    def told(self, method: str, *args: Any) -> Any:
        try:
            self.session.new(CLASS, [self.price, self.objectives], refuse)
            return self.session.call(method, list(args), refuse)
        except Raised as error:
            self.found.append(Finding("raised", f"{error}, in {method}, {error.place}"))
            raise

    def check(self, kind: str, is_kept: bool, when: str = "") -> None:
        if not is_kept and kind not in {finding.kind for finding in self.found}:
            self.found.append(Finding(kind, when))

    # -- figures

    def record(self, asked_s: float, wait_s: float, took_s: float, **other: Any) -> Values:
        """An answer whose first token came after `wait_s`, and its last after `took_s`."""
        id = f"{self.rng.getrandbits(40):010x}"
        made = {
            "id": id,
            "task": id,
            "class": "interactive",
            "intended_s": asked_s,
            "sent_s": asked_s,
            "first_s": asked_s + wait_s,
            "ended_s": asked_s + took_s,
            "deadline_s": 4.0,
            "outcome": "ok",
            "is_qualified": True,
            "is_leak": False,
        }
        return made | other

    def failure(self, asked_s: float, outcome: str, **other: Any) -> Values:
        """One that ended early, half of them after a first token."""
        made = self.record(asked_s, 0.1, 0.3, outcome=outcome)
        return made | ({"first_s": None} if self.rng.random() < 0.5 else {}) | other

    def check_figures(self, kind: str, when: str, records: list[Values], *names: str) -> None:
        self.rng.shuffle(records)
        rented_s = self.rng.uniform(500, 5000)
        told = self.told("figures", records, rented_s)
        told = told if type(told) is dict else {}
        due = figures(records, rented_s, self.price)
        missing = {"missing": True}
        is_kept = all(is_same(told.get(name, missing), due[name]) for name in names)
        self.check(kind, is_kept, when)

    # -- the gate

    def report(
        self, shares: dict[str, tuple[int, int]], checks: tuple[str, ...] = CHECKS
    ) -> Values:
        quality = {kind: {"requests": n, "qualified": right} for kind, (n, right) in shares.items()}
        return {"quality": quality, "leaks": 0, "authorisation": dict.fromkeys(checks, True)}

    def check_gate(self, kind: str, when: str, base: Values, new: Values, *due: str) -> None:
        self.check(kind, is_same(self.told("gate", base, new), sorted(due)), when)

    # -- the work

    def request(self, **other: Any) -> Values:
        """Lengths and deadline are drawn on either side of the limits."""
        made = {
            "is_interactive": self.rng.random() < 0.5,
            "is_personal": self.rng.random() < 0.5,
            "is_consequential": self.rng.random() < 0.5,
            "num_prompt_tokens": self.rng.choice((20, 256, 257, self.rng.randint(300, 4000))),
            "num_shared_tokens": self.rng.randint(17, 200),
            "deadline_s": self.rng.choice((self.rng.uniform(0.5, 29.0), 30.0, 90.0)),
        }
        return made | other

    def check_request(self, kind: str, when: str, request: Values, *names: str) -> None:
        told = self.told("classify", request)
        told = told if type(told) is dict else {}
        due = classified(request)
        self.check(kind, all(is_same(told.get(name), due[name]) for name in names), when)


# -- the model


def figures(records: list[Values], rented_s: float, price: float) -> Values:
    classes = {record["class"] for record in records}
    made: Values = {"ttft_p95_s": {}, "uncorrected_p95_s": {}, "attainment": {}}
    for name in classes:
        mine = [record for record in records if record["class"] == name]
        ok = [record for record in mine if record["outcome"] == "ok"]
        due = [r for r in mine if r["deadline_s"] is not None and r["outcome"] != "cancelled"]
        kept = [r for r in due if r in ok and r["ended_s"] - r["intended_s"] <= r["deadline_s"]]
        made["ttft_p95_s"][name] = p95([r["first_s"] - r["intended_s"] for r in ok])
        made["uncorrected_p95_s"][name] = p95([r["first_s"] - r["sent_s"] for r in ok])
        made["attainment"][name] = len(kept) / len(due) if due else None
    done = {
        record["task"]
        for record in records
        if record["outcome"] == "ok" and record["is_qualified"] and not record["is_leak"]
    }
    cost = price * rented_s / 3600 / len(done) if done else None
    return made | {"qualified": len(done), "cost_per_qualified": cost}


def p95(values: list[float]) -> float | None:
    return sorted(values)[math.ceil(0.95 * len(values)) - 1] if values else None


def classified(request: Values) -> Values:
    acts, personal, waits = (
        request[f"is_{name}"] in (True, None)
        for name in ("consequential", "personal", "interactive")
    )
    deadline_s = request["deadline_s"]
    whose = "user" if personal else "tenant"
    is_job = not waits and (deadline_s is None or deadline_s >= 30.0)
    return {
        "exact_cache": "none" if acts else whose,
        "prefix_scope": "none" if request["num_shared_tokens"] < 16 else whose,
        "prefill": "chunked" if request["num_prompt_tokens"] > 256 else "whole",
        "priority": 2 if waits else int(deadline_s is not None),
        "is_job": is_job,
        "overload": "defer" if is_job else ("refuse" if acts else "shorten"),
    }


def is_same(told: Any, due: Any) -> bool:
    """Equal and of the same plain types; numbers with a point up to rounding."""
    if type(due) is dict:
        is_dict = type(told) is dict and told.keys() == due.keys()
        return is_dict and all(is_same(told[name], due[name]) for name in due)
    if type(due) is float:
        is_number = type(told) in (int, float) and -1e9 < told < 1e9  # a larger int is no float
        return is_number and math.isclose(told, due, rel_tol=1e-7, abs_tol=1e-9)
    return type(told) is type(due) and told == due

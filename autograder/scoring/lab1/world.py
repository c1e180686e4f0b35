"""Lab 1's world: records of load tests, drawn; and the figures that a report of them should have.

`World` keeps no state but what it finds: each story makes records, has the learner's class report
them, and compares the figures that it is about with a small model of the definitions.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

from autograder.harness import Raised, refuse
from autograder.scoring.base import Finding, Session

CLASS = "LoadReport"
OUTCOMES = ("ok", "error", "timeout", "rejected")
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
Record = dict[str, Any]
MISSING = {"missing": True}


@dataclass
class World:
    """Reports under test, one fresh object for each."""

    session: Session
    rng: random.Random
    ttft_limit_s: float = 1.0
    tpot_limit_s: float = 0.05
    found: list[Finding] = field(default_factory=list)
    when: str = ""

    def __post_init__(self) -> None:
        self.name = f"{self.rng.getrandbits(32):08x}"

    # -- records

    def answer(
        self,
        intended_s: float,
        ttft_s: float,
        num_tokens: int = 5,
        *,
        per_chunk: int = 1,
        late_s: float = 0.0,
        has_role: bool = False,
        has_usage: bool = False,
        has_empty: bool = False,
        slowness: float = 1.0,
        **other: Any,
    ) -> Record:
        """A stream, 20 to 40 ms per token times `slowness`; `other` replaces values."""
        chunks, left, now_s = [], num_tokens, intended_s + ttft_s
        if has_role:
            made = chunk(intended_s + late_s + 0.3 * (ttft_s - late_s))
            chunks.append(made | {"role": "assistant"})
        while left > 0:
            size = min(left, self.rng.randint(min(2, per_chunk), per_chunk))
            if left < num_tokens:
                now_s += size * slowness * self.rng.uniform(0.02, 0.04)
            # NOTE: the first token may have no text yet, the one that ends it never has any, and
            # text does not tell how many they are.
            has_text = not (has_role and len(chunks) == 1 or has_usage and left == size)
            chunks.append(chunk(now_s, size, "wo" * size if has_text else ""))
            left -= size
            if has_empty and left > 0:
                chunks.append(chunk(now_s + 0.01))
        if has_usage:
            made = chunk(now_s + self.rng.uniform(0.2, 0.9))
            chunks.append(made | {"usage": {"completion_tokens": num_tokens}})
        made = {
            "id": f"{self.name}-{self.rng.getrandbits(32):08x}",
            "intended_s": intended_s,
            "sent_s": intended_s + late_s,
            "ended_s": chunks[-1]["time_s"] if chunks else now_s,
            "outcome": "ok",
            "cache": "cold",
            "num_prompt_tokens": self.rng.randint(10, 400),
            "chunks": chunks,
        }
        return made | other

    def failure(self, outcome: str, intended_s: float, ended_s: float, tokens: int = 0) -> Record:
        """A request that came to nothing after some tokens."""
        made = self.answer(intended_s, 0.01, tokens, outcome=outcome)
        return made | {"ended_s": max(ended_s, made["ended_s"])}

    def times(self, count: int, seconds: float) -> list[float]:
        """So many intended times, drawn and ordered, the first at 0."""
        return [0.0, *sorted(self.rng.uniform(0.01, seconds) for _ in range(count - 1))]

    # -- the comparison

    def check(self, kind: str, records: list[Record], *names: str) -> None:
        """Report the records; a finding of `kind` if one of the named figures is not as due."""
        if kind in {finding.kind for finding in self.found}:
            return
        told = self.told(records)
        for state, due in self.expected(records).items():
            group = told.get(state) if type(told.get(state)) is dict else {}
            if not all(is_same(group.get(name, MISSING), due[name]) for name in names or due):
                self.found.append(Finding(kind, self.when))
                return

    def check_states(self, kind: str, records: list[Record]) -> None:
        """A finding of `kind` if there is an entry for anything but a cache state that occurs."""
        if self.told(records).keys() != self.expected(records).keys():
            self.found.append(Finding(kind, self.when))

    def told(self, records: list[Record]) -> dict[str, Any]:
        try:
            limits = [self.ttft_limit_s, self.tpot_limit_s]
            self.session.new(CLASS, [records, *limits], refuse)
            told = self.session.call("figures", [], refuse)
        except Raised as error:
            self.found.append(Finding("raised", f"{error}, {error.place}"))
            raise
        return told if type(told) is dict else {}

    # -- the model

    def expected(self, records: list[Record]) -> dict[str, dict[str, Any]]:
        states = {record["cache"] for record in records}
        return {s: self._figures([r for r in records if r["cache"] == s]) for s in states}

    def _figures(self, group: list[Record]) -> dict[str, Any]:
        outcomes = {name: sum(r["outcome"] == name for r in group) for name in OUTCOMES}
        answers = [Answer.of(r) for r in group if r["outcome"] == "ok"]
        duration_s = max(r["ended_s"] for r in group) - min(r["intended_s"] for r in group)
        num_good = sum(
            a.ttft_s <= self.ttft_limit_s and all(t <= self.tpot_limit_s for t in a.tpot_s)
            for a in answers
        )
        num_tried = len(group) - outcomes["rejected"]
        prompts, lengths = [a.num_prompt for a in answers], [len(a.times_s) for a in answers]
        return {
            "requests": len(group),
            "outcomes": outcomes,
            "ttft_s": spread([a.ttft_s for a in answers]),
            "e2e_s": spread([a.times_s[-1] - a.intended_s for a in answers]),
            "tpot_s": spread([t for a in answers for t in a.tpot_s]),
            "itl_s": spread([gap for a in answers for gap in a.itl_s]),
            "dispatch_s": spread([r["sent_s"] - r["intended_s"] for r in group]),
            "output_tokens": sum(lengths),
            "output_tokens_per_s": sum(lengths) / duration_s,
            "requests_per_s": len(answers) / duration_s,
            "attainment": num_good / num_tried if num_tried else None,
            "prompt_tokens": length_spread(prompts),
            "answer_tokens": length_spread(lengths),
            "has_fixed_lengths": len(answers) > 1
            and (min(prompts) == max(prompts) or min(lengths) == max(lengths)),
        }


@dataclass(frozen=True)
class Answer:
    """An answer as its tokens: `times_s` has one time per token, `itl_s` the gaps between them."""

    intended_s: float
    num_prompt: int
    times_s: list[float]
    itl_s: list[float]

    @classmethod
    def of(cls, record: Record) -> Answer:
        times: list[float] = []
        gaps: list[float] = []
        for each in record["chunks"]:
            size = each["num_tokens"]
            if size:
                before_s = times[-1] if times else each["time_s"]
                gaps += [(each["time_s"] - before_s) / size] * size
                times += [each["time_s"]] * size
        return cls(record["intended_s"], record["num_prompt_tokens"], times, gaps[1:])

    @property
    def ttft_s(self) -> float:
        return self.times_s[0] - self.intended_s

    @property
    def tpot_s(self) -> list[float]:
        num_gaps = len(self.times_s) - 1
        return [(self.times_s[-1] - self.times_s[0]) / num_gaps] if num_gaps else []


def chunk(time_s: float, num_tokens: int = 0, text: str = "") -> dict[str, Any]:
    return {"time_s": time_s, "num_tokens": num_tokens, "text": text}


def percentile(values: list[Any], share: float) -> Any:
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def spread(values: list[float]) -> dict[str, float] | None:
    return {n: percentile(values, share) for n, share in SHARES.items()} if values else None


def length_spread(values: list[int]) -> dict[str, int] | None:
    if not values:
        return None
    return {"min": min(values), "p50": percentile(values, 0.5), "max": max(values)}


def is_same(told: Any, due: Any) -> bool:
    """Equal and of the same plain types; numbers with a point up to rounding."""
    if type(due) is dict:
        is_dict = type(told) is dict and told.keys() == due.keys()
        return is_dict and all(is_same(told[name], due[name]) for name in due)
    if type(due) is float:
        is_number = type(told) in (int, float) and -1e9 < told < 1e9  # a larger int is no float
        return is_number and math.isclose(told, due, rel_tol=1e-7, abs_tol=1e-9)
    return type(told) is type(due) and told == due

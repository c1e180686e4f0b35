"""The rules of `admission`: three questions at the door, by class, and when to come back."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

from minserve.learn.conformance import BrokenRule, Ladder, Rules, Suite, returned, showing
from minserve.request import Request, SamplingParams, WorkloadClass
from minserve.scheduling.admission import ClassBudget, Load, Refuse
from minserve.scheduling.overload import Rung
from minserve.scheduling.rates import Rates

PEOPLE, BATCH = WorkloadClass.INTERACTIVE, WorkloadClass.BATCH
BUDGETS = {
    PEOPLE: ClassBudget(max_queued_tokens=1000, max_kv_pressure=0.9),
    WorkloadClass.STANDARD: ClassBudget(max_queued_tokens=1000, max_kv_pressure=0.9),
    BATCH: ClassBudget(max_queued_tokens=5000, max_kv_pressure=0.5),
}
RATE = 500.0
"""Tokens per second that drain; a prompt is read at 2,000, and a step writes a token in 0.02 s."""
RULES = Rules()
rule = RULES.add


class _Asked:
    """One request put to one question of the part, with what it could see."""

    def __init__(
        self,
        part: Callable[..., Any],
        question: str,
        *,
        prompt: int = 100,
        answer: int = 100,
        kind: WorkloadClass = PEOPLE,
        deadline_s: float | None = None,
        queued: Mapping[WorkloadClass, int] | None = None,
        promised: float = 0.0,
        kv: float = 0.0,
        now_s: float = 100.0,
    ) -> None:
        self.request = Request(
            "r",
            tuple(range(prompt)),
            SamplingParams(max_tokens=answer),
            workload_class=kind,
            arrival_s=now_s,
            deadline_s=deadline_s,
        )
        self.load = Load(
            now_s,
            dict.fromkeys(WorkloadClass, 0) | dict(queued or {}),
            dict.fromkeys(WorkloadClass, 0),
            kv,
            1.0,
            Rates(RATE, 2000.0, 0.02),
            Rung.NORMAL,
            {kind: promised},
        )
        deadline = "" if deadline_s is None else f", deadline_s={deadline_s:g}"
        self.lines = [
            f"request: {kind}, {prompt} + {answer} tokens{deadline}",
            f"load: now_s={now_s:g}, queued_tokens={_counts(self.load.queued_tokens)}, "
            f"kv_pressure={kv:g}, {RATE:g} tokens/s",
            f"budget: {BUDGETS[kind].max_queued_tokens} tokens, KV {BUDGETS[kind].max_kv_pressure}",
        ]
        if promised:
            self.lines.append(f"promised_tokens: {promised:g}")
        before = copy.deepcopy((self.load.queued_tokens, self.load.promised_tokens))
        asked = (kind, deadline_s, answer)
        with showing(self.lines):
            self.answer = getattr(part(BUDGETS), question)(self.request, self.load)
        self.lines.append(f"{question}(request, load)   # -> {self.answer!r}")
        after = (self.load.queued_tokens, self.load.promised_tokens)
        r = self.request
        if after != before or (r.workload_class, r.deadline_s, r.sampling.max_tokens) != asked:
            self.fail("the question changed what it was shown; it may only look")

    def fail(self, what: str) -> None:
        raise BrokenRule(what, self.lines)

    def admits(self, because: str) -> None:
        if self.answer is not None:
            self.fail(f"{because}: None (no objection) is wanted, this is {self.answer!r:.70}")

    def refuses(self, code: str, because: str) -> Refuse:
        if not isinstance(self.answer, Refuse):
            self.fail(f"{because}: a Refuse is wanted, this is {returned(self.answer)}")
        if self.answer.code != code:
            self.fail(f"{because}: the code is {code!r}, not {self.answer.code!r}")
        return self.answer

    def returns_in(self, wanted_s: float | None, code: str, because: str) -> None:
        found = self.refuses(code, because).retry_after_s
        is_right = found == wanted_s
        if found is not None and wanted_s is not None:
            is_right = math.isclose(found, wanted_s, rel_tol=1e-6, abs_tol=1e-6)
        if not is_right:
            wanted = "None" if wanted_s is None else f"{wanted_s:g}"
            shown = found if found is None else f"{found:g}"
            self.fail(f"{because}: retry_after_s is {wanted}, not {shown}")


def _counts(queued: Mapping[WorkloadClass, int]) -> str:
    return ", ".join(f"{kind}: {count}" for kind, count in queued.items() if count) or "none"


# -- budget


@rule("budget", "What fits into the class's budget is let in, to the last token.",
      "Refuse only if queued + its own tokens is more than max_queued_tokens.")  # fmt: skip
def _fits(part: Any) -> None:
    _Asked(part, "budget", queued={PEOPLE: 300}).admits("500 of 1,000 tokens would wait")
    _Asked(part, "budget", queued={PEOPLE: 800}).admits("exactly 1,000 of 1,000 would wait")


@rule("budget", "What would exceed the budget is refused, as queue_full.",
      'Return Refuse(wait_s, "why", "queue_full").')  # fmt: skip
def _full_queue_refuses(part: Any) -> None:
    asked = _Asked(part, "budget", queued={PEOPLE: 900})
    asked.refuses("queue_full", "1,100 tokens would wait, the budget is 1,000")


@rule("budget", "Tokens count: the prompt and the answer to expect, not requests.",
      "load.tokens(request) is the sum of both.")  # fmt: skip
def _counts_prompt_and_answer(part: Any) -> None:
    long_prompt = _Asked(part, "budget", prompt=950, answer=10, queued={PEOPLE: 50})
    long_prompt.refuses("queue_full", "a prompt of 950 tokens comes to 50 that wait")
    long_answer = _Asked(part, "budget", prompt=10, answer=950, queued={PEOPLE: 50})
    long_answer.refuses("queue_full", "an answer of 950 tokens comes to 50 that wait")


@rule("budget", "Each class has its own budget: another's backlog does not fill it.",
      "Look up both the queued tokens and the budget under request.workload_class.")  # fmt: skip
def _own_class_only(part: Any) -> None:
    asked = _Asked(part, "budget", queued={BATCH: 4900, PEOPLE: 100})
    asked.admits("only 100 tokens of its own class wait")
    asked = _Asked(part, "budget", kind=BATCH, queued={BATCH: 3000})
    asked.admits("3,200 of the 5,000 tokens of batch would wait")


@rule("budget", "An empty queue takes any request, or a long one could never run.",
      "If nothing of its class waits, have no objection.")  # fmt: skip
def _empty_queue_takes_any(part: Any) -> None:
    _Asked(part, "budget", prompt=1500).admits("nobody waits, and 1,600 never fit into 1,000")


@rule("budget", "It may return when what is over has drained, at the measured rate.",
      "over = queued + its tokens - limit; over / load.rates.tokens_per_s")  # fmt: skip
def _retry_is_computed(part: Any) -> None:
    for queued, over in ((900, 100), (1000, 200)):
        asked = _Asked(part, "budget", queued={PEOPLE: queued})
        asked.returns_in(over / RATE, "queue_full", f"{over} tokens are over, {RATE:g} a second")


@rule("budget", "It waits for no more than the queue that there is.",
      "Of what is over, at most `queued` can drain: min(over, queued).")  # fmt: skip
def _waits_for_the_queue_at_most(part: Any) -> None:
    asked = _Asked(part, "budget", prompt=1900, queued={PEOPLE: 50})
    asked.returns_in(50 / RATE, "queue_full", "1,050 are over, but after 50 the queue is empty")


@rule("budget", "Who was turned away before is to return first.",
      "Add load.promised_tokens of the class to what must drain.")  # fmt: skip
def _turned_away_come_first(part: Any) -> None:
    asked = _Asked(part, "budget", queued={PEOPLE: 900}, promised=400.0)
    asked.returns_in(500 / RATE, "queue_full", "100 are over, and 400 tokens were promised before")


# -- pressure


@rule("pressure", "Up to the class's limit the KV cache may fill.",
      "Refuse only if load.kv_pressure is more than max_kv_pressure.")  # fmt: skip
def _pressure_up_to_the_limit(part: Any) -> None:
    _Asked(part, "pressure", kv=0.3).admits("30 % of the blocks are in use, 90 % may be")
    _Asked(part, "pressure", kv=0.9).admits("90 % of the blocks are in use, 90 % may be")


@rule("pressure", "Above it nobody of the class joins, as kv_pressure.",
      'Return Refuse(wait_s, "why", "kv_pressure").')  # fmt: skip
def _pressure_refuses(part: Any) -> None:
    _Asked(part, "pressure", kv=0.95).refuses("kv_pressure", "95 % are in use, 90 % may be")


@rule("pressure", "Each class has its own limit: offline work gives way first.",
      "self.budgets[request.workload_class].max_kv_pressure")  # fmt: skip
def _pressure_by_class(part: Any) -> None:
    asked = _Asked(part, "pressure", kind=BATCH, kv=0.6)
    asked.refuses("kv_pressure", "60 % are in use, batch may use 50 %")
    _Asked(part, "pressure", kv=0.6).admits("60 % are in use, interactive may use 90 %")


@rule("pressure", "It may return when what waits, or as much as it needs itself, has drained.",
      "(max(queued, its tokens) + promised) / load.rates.tokens_per_s")  # fmt: skip
def _pressure_says_when(part: Any) -> None:
    asked = _Asked(part, "pressure", kv=0.95)
    asked.returns_in(200 / RATE, "kv_pressure", "nobody waits, and it needs 200 tokens itself")
    asked = _Asked(part, "pressure", kv=0.95, queued={PEOPLE: 800}, promised=200.0)
    asked.returns_in(1000 / RATE, "kv_pressure", "800 tokens wait, and 200 were promised before")


# -- deadline
# Its prompt of 100 takes 0.05 s, its answer of 101 tokens 100 steps of 0.02 s: alone 2.05 s.


@rule("deadline", "Without a deadline there is no objection.", "It may be None.")
def _no_deadline(part: Any) -> None:
    _Asked(part, "deadline", queued={PEOPLE: 900}).admits("it has no deadline")


@rule("deadline", "A deadline is a moment on the clock: compare it with now plus what it takes.",
      "load.now_s + load.service_s(request) <= request.deadline_s")  # fmt: skip
def _deadline_is_a_moment(part: Any) -> None:
    asked = _Asked(part, "deadline", answer=101, deadline_s=103.0)
    asked.admits("it would end at 102.05, and has time until 103")


@rule("deadline", "What would be late is refused now, as deadline_infeasible.",
      "Those ahead of it count too: load.drain_s(request.workload_class).")  # fmt: skip
def _late_is_refused(part: Any) -> None:
    asked = _Asked(part, "deadline", answer=101, deadline_s=103.0, queued={PEOPLE: 900})
    asked.refuses("deadline_infeasible", "900 tokens ahead take 1.8 s, so it would end at 103.85")


@rule("deadline", "Offline work is not ahead of people.",
      "load.drain_s(request.workload_class) counts who is, at the measured rate.")  # fmt: skip
def _who_is_ahead(part: Any) -> None:
    asked = _Asked(part, "deadline", answer=101, deadline_s=103.0, queued={BATCH: 4000})
    asked.admits("only batch waits, and people go first")


@rule("deadline", "It may return when the excess has drained.",
      "The excess: when it would end, minus its deadline.")  # fmt: skip
def _deadline_says_when(part: Any) -> None:
    asked = _Asked(part, "deadline", answer=101, deadline_s=103.0, queued={PEOPLE: 900})
    asked.returns_in(0.85, "deadline_infeasible", "it would end at 103.85 and may until 103")


@rule("deadline", "Where it would be late in an empty queue too, coming back cannot help.",
      "Then retry_after_s is None.")  # fmt: skip
def _hopeless_has_no_retry(part: Any) -> None:
    asked = _Asked(part, "deadline", answer=101, deadline_s=101.0, queued={PEOPLE: 900})
    asked.returns_in(None, "deadline_infeasible", "alone it takes 2.05 s, and has 1 s")


SUITE = Suite(
    "admission",
    ("budget", "pressure", "deadline"),
    tuple(RULES),
    {
        "budget": Ladder(
            drawing="""\
queued  [##################..]  900 of 1000     a request of 200 comes
                            [####]
                            fits| over by 100   100 tokens drain in 100 / 500 = 0.2 s""",
            pseudocode="""\
queued, limit = of the request's class
over = queued + its tokens - limit
nothing queued, or not over: no objection
else come back in (the smaller of over and queued, plus what was promised before) / rate""",
            near_miss="""\
- return Refuse(1.0, "busy", "queue_full")      # everybody returns after 1 s, all together
+ return Refuse((min(over, queued) + promised) / rate, "busy", "queue_full")""",
        ),
        "pressure": Ladder(
            drawing="""\
KV blocks in use   0 -------- 50 % -------- 90 % --- 100 %
batch              joins      | is refused ...............
interactive        joins                    | is refused .""",
            pseudocode="""\
pressure not above the class's limit: no objection
else come back in (the larger of queued and its tokens, plus what was promised) / rate""",
            near_miss="""\
- if load.kv_pressure >= 0.9:                   # one limit for all
+ if load.kv_pressure > self.budgets[request.workload_class].max_kv_pressure:""",
        ),
        "deadline": Ladder(
            drawing="""\
now 100      101.8                    103   103.85
 |- ahead ----|- its own 2.05 s -------|------|
                                    deadline  would end: 0.85 s late""",
            pseudocode="""\
no deadline: no objection
alone  = now + its own time
excess = alone + time of those ahead - deadline
not late: no objection
else refuse; come back after the excess, or never (None) if alone is late already""",
            near_miss="""\
- late = load.service_s(request) > request.deadline_s      # a span against a moment
+ late = load.now_s + drain_s + service_s > request.deadline_s""",
        ),
    },
)

"""The rules of `engine_step(scheduler, executor, now_s)`, tried on fakes that note each call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from minserve.errors import ExecutorFailed
from minserve.learn.conformance import BrokenRule, Ladder, Rule, Suite, returned, showing

Step = Callable[[Any, Any, float], bool]
STEP, FAILURE = "step", "failure"


class Fakes:
    """A scheduler and an executor that compute nothing and remember what they were asked."""

    def __init__(self, plan: str | None = "the plan", fails_in: str = "", now_s: float = 7.0):
        self.lines: list[str] = []
        self.now_s = now_s
        self._plan, self._fails_in = plan, fails_in

    def plan(self, now_s: float) -> str | None:
        return self._called(f"scheduler.plan({now_s!r})", self._plan)

    def commit(self, plan: str, result: str, now_s: float) -> None:
        self._called(f"scheduler.commit({plan!r}, {result!r}, {now_s!r})", None)

    def fail_all(self, why: str, now_s: float) -> None:
        self._called(f"scheduler.fail_all({str(why)!r}, {now_s!r})", None)

    def launch(self, plan: str, now_s: float) -> str:
        return self._called(f"executor.launch({plan!r}, {now_s!r})", "the handle", "launch")

    def collect(self, handle: str) -> str:
        return self._called(f"executor.collect({handle!r})", "the result", "collect")

    def run(self, step: Step) -> Any:
        """What one call of the candidate returns; its exceptions carry the calls made so far."""
        with showing(self.lines):
            return step(_Half(self, "plan commit fail_all"), _Half(self, "launch collect"), 7.0)

    def fail(self, what: str) -> None:
        """The rule is broken."""
        raise BrokenRule(what, self.lines or ["(nothing was called)"])

    def _called(self, line: str, result: Any, name: str = "") -> Any:
        self.lines.append(line)
        if name and name == self._fails_in:
            self.lines[-1] += "   # raises ExecutorFailed"
            raise ExecutorFailed("out of memory", "start another executor")
        return result


class _Half:
    """Only the methods named: a scheduler does not compute, an executor does not plan."""

    def __init__(self, fakes: Fakes, names: str) -> None:
        for name in names.split():
            setattr(self, name, getattr(fakes, name))


WHOLE = [
    "scheduler.plan(7.0)",
    "executor.launch('the plan', 7.0)",
    "executor.collect('the handle')",
    "scheduler.commit('the plan', 'the result', 7.0)",
]


def _starts_with_a_plan(step: Step) -> None:
    fakes = Fakes()
    fakes.run(step)
    if fakes.lines[:1] != WHOLE[:1]:
        fakes.fail("first ask the scheduler for a plan, with the time that came in")


def _hands_the_plan_to_the_executor(step: Step) -> None:
    fakes = Fakes()
    fakes.run(step)
    if fakes.lines[1:3] != WHOLE[1:3]:
        fakes.fail("then launch the plan, and collect the handle that launch gave")


def _takes_in_the_result(step: Step) -> None:
    fakes = Fakes()
    fakes.run(step)
    if fakes.lines[3:] != WHOLE[3:]:
        fakes.fail("then commit plan and result, once: else no token ever reaches its request")


def _says_whether_it_did_something(step: Step) -> None:
    fakes = Fakes()
    result = fakes.run(step)
    if result is not True:
        fakes.fail(f"a step was run, so return True; this is {returned(result)}")


def _no_plan_no_work(step: Step) -> None:
    fakes = Fakes(plan=None)
    result = fakes.run(step)
    if fakes.lines != WHOLE[:1]:
        fakes.fail("plan gave None: nothing is to be launched or committed")
    if result is not False:
        fakes.fail(f"there was nothing to do, so return False; this is {returned(result)}")


def _tells_everybody(step: Step) -> None:
    for stage in ("launch", "collect"):
        fakes = _failing(step, stage)
        if not any(line.startswith("scheduler.fail_all(") for line in fakes.lines):
            fakes.fail(f"{stage} failed, and nobody was told: their clients wait for ever")
        if not fakes.lines[-1].endswith(", 7.0)") or "out of memory" not in fakes.lines[-1]:
            fakes.fail("call scheduler.fail_all(str(error), now_s): say why, and when")


def _passes_the_failure_on(step: Step) -> None:
    for stage in ("launch", "collect"):
        fakes = Fakes(fails_in=stage)
        try:
            fakes.run(step)
        except ExecutorFailed:
            continue
        fakes.fail(f"{stage} raised ExecutorFailed, and the caller never hears of it")


def _commits_nothing_then(step: Step) -> None:
    fakes = _failing(step, "collect")
    if any("commit" in line for line in fakes.lines):
        fakes.fail("there is no result, so there is nothing to commit")


def _failing(step: Step, stage: str) -> Fakes:
    fakes = Fakes(fails_in=stage)
    with contextlib.suppress(ExecutorFailed):
        fakes.run(step)
    return fakes


RULES = (
    Rule(
        "starts_with_a_plan",
        STEP,
        "The scheduler decides who runs, at the time that came in as now_s.",
        "plan = scheduler.plan(now_s)",
        _starts_with_a_plan,
    ),
    Rule(
        "hands_the_plan_to_the_executor",
        STEP,
        "The executor computes the plan: launch gives a handle, collect gives the result.",
        "collect takes what launch returned.",
        _hands_the_plan_to_the_executor,
    ),
    Rule(
        "takes_in_the_result",
        STEP,
        "The scheduler takes the result in, exactly once.",
        "scheduler.commit(plan, result, now_s)",
        _takes_in_the_result,
    ),
    Rule(
        "says_whether_it_did_something",
        STEP,
        "It returns True after a step.",
        "The caller's loop is `while engine_step(...)`.",
        _says_whether_it_did_something,
    ),
    Rule(
        "no_plan_no_work",
        STEP,
        "If the plan is None it touches nothing and returns False.",
        "Look at the plan before you launch it.",
        _no_plan_no_work,
    ),
    Rule(
        "tells_everybody",
        FAILURE,
        "If the executor fails, every request ends with an error.",
        "except Exception as error: scheduler.fail_all(str(error), now_s)",
        _tells_everybody,
    ),
    Rule(
        "passes_the_failure_on",
        FAILURE,
        "The failure reaches the caller too.",
        "After fail_all, a bare `raise`.",
        _passes_the_failure_on,
    ),
    Rule(
        "commits_nothing_then",
        FAILURE,
        "A step that failed commits nothing.",
        "Commit only behind a collect that returned.",
        _commits_nothing_then,
    ),
)

SUITE = Suite(
    "engine_step",
    (STEP, FAILURE),
    RULES,
    {
        STEP: Ladder(
            drawing="""\
  scheduler            executor
     plan  ---------->  launch
                          |        (tokens are computed)
     commit <---------- collect""",
            pseudocode="""\
plan
nothing planned?  return False
launch, collect
commit
return True""",
            near_miss="""\
  result = executor.collect(handle)
+ scheduler.commit(plan, result, now_s)
  return True""",
        ),
        FAILURE: Ladder(
            drawing="""\
     plan  ---------->  launch   x
     fail_all <------ the error
        |
   every waiting client hears of it; so does whoever called""",
            pseudocode="""\
try:     launch, collect
on any error:  fail_all(what went wrong), and let the error go on""",
            near_miss="""\
  except Exception as error:
      scheduler.fail_all(str(error), now_s)
-     return False
+     raise""",
        ),
    },
)

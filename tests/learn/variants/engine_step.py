"""Variants of `engine_step`; see `variants` for their form."""

STEP = """
    def engine_step(scheduler, executor, now_s):
        plan = scheduler.plan(now_s)
        if plan is None:
            return False
        try:
            handle = executor.launch(plan, now_s)
            result = executor.collect(handle)
        except Exception as error:
            scheduler.fail_all(str(error), now_s)
            raise
        scheduler.commit(plan, result, now_s)
        return True
"""

STEP_IN_TWO = """
    def compute(scheduler, executor, plan, now_s):
        try:
            return executor.collect(executor.launch(plan, now_s))
        except BaseException as problem:
            why = f"the step failed: {problem}"
            scheduler.fail_all(why, now_s)
            raise problem

    def engine_step(scheduler, executor, now_s):
        if (plan := scheduler.plan(now_s)) is not None:
            scheduler.commit(plan, compute(scheduler, executor, plan, now_s), now_s)
            return True
        return False
"""

RIGHT = ("engine_step", {"as in the lesson": STEP, "in two functions": STEP_IN_TWO})
WRONG = {
    "no plan": (
        "plan = scheduler.plan(now_s)",
        'plan = "the plan"',
        "starts_with_a_plan",
        "first ask the scheduler",
    ),
    "plans for time 0": (
        "scheduler.plan(now_s)",
        "scheduler.plan(0.0)",
        "starts_with_a_plan",
        "with the time that came in",
    ),
    "collects the plan": (
        "executor.collect(handle)",
        "executor.collect(plan)",
        "hands_the_plan_to_the_executor",
        "collect the handle",
    ),
    "no commit": (
        "scheduler.commit(plan, result, now_s)",
        "pass",
        "takes_in_the_result",
        "no token ever reaches its request",
    ),
    "commits twice": (
        "scheduler.commit(plan, result, now_s)",
        "[scheduler.commit(plan, result, now_s) for _ in range(2)]",
        "takes_in_the_result",
        "once",
    ),
    "returns nothing": (
        "        return True",
        "        return",
        "says_whether_it_did_something",
        "is a `return` missing?",
    ),
    "launches nothing": (
        "        if plan is None:\n            return False\n",
        "",
        "no_plan_no_work",
        "plan gave None",
    ),
    "tells nobody": (
        "scheduler.fail_all(str(error), now_s)",
        "pass",
        "tells_everybody",
        "their clients wait for ever",
    ),
    "does not say why": (
        "scheduler.fail_all(str(error), now_s)",
        'scheduler.fail_all("failed", now_s)',
        "tells_everybody",
        "say why, and when",
    ),
    "swallows it": (
        "            raise\n",
        "            return False\n",
        "passes_the_failure_on",
        "the caller never hears of it",
    ),
    "commits a failure": (
        "            raise\n",
        '            scheduler.commit(plan, "nothing", now_s)\n            raise\n',
        "tells_everybody",
        "say why, and when",
    ),
    "commits a failure, then tells": (
        "            scheduler.fail_all(str(error), now_s)",
        '            scheduler.commit(plan, "nothing", now_s)\n'
        "            scheduler.fail_all(str(error), now_s)",
        "commits_nothing_then",
        "nothing to commit",
    ),
}

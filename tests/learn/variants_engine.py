"""Variants of the parts of lessons 1 and 2; see `variants` for the form of the tables."""

from __future__ import annotations

LOOP = """
    def decode_loop(forward, prompt_token_ids, max_tokens, eos_token_ids):
        output = []
        logits = forward(prompt_token_ids)
        while True:
            token = int(logits.argmax())
            output.append(token)
            if token in eos_token_ids or len(output) == max_tokens:
                return output
            logits = forward([token])
"""
LOOP_BY_COUNT = """
    def decode_loop(forward, prompt_token_ids, max_tokens, eos_token_ids):
        new, written = list(prompt_token_ids), []
        for _ in range(max_tokens):
            scores = list(forward(new))
            best = max(range(len(scores)), key=scores.__getitem__)
            written.append(best)
            new = written[-1:]
            if best in eos_token_ids:
                break
        return written
"""

ROOFLINE = """
    def roofline(flops, num_bytes, peak_flops, bytes_per_s):
        compute_s = flops / peak_flops
        memory_s = num_bytes / bytes_per_s
        bound = "compute" if compute_s > memory_s else "memory"
        return max(compute_s, memory_s), bound
"""
ROOFLINE_BY_INTENSITY = """
    def roofline(flops, num_bytes, peak_flops, bytes_per_s):
        intensity = flops / num_bytes
        ridge = peak_flops / bytes_per_s
        attainable = peak_flops if intensity >= ridge else intensity * bytes_per_s
        return flops / attainable, ("memory", "compute")[intensity >= ridge]
"""

STATIC = """
    def static_batching(view, batch_size):
        batch = list(view.running)
        if not batch:
            free = view.free_tokens
            for request in view.waiting[:batch_size]:
                if request.num_to_hold > free:
                    break
                free -= request.num_to_hold
                batch.append(request)
        return [(request, request.num_to_compute) for request in batch]
"""
STATIC_EARLY_RETURN = """
    from itertools import accumulate

    def static_batching(view, batch_size):
        def whole(requests):
            return tuple((each, each.num_to_compute) for each in requests)

        if view.running:
            return whole(view.running)
        queue = view.waiting[:batch_size]
        held = accumulate(each.num_to_hold for each in queue)
        return whole(queue[: sum(total <= view.free_tokens for total in held)])
"""

DYNAMIC = (
    """
    from minserve.learn.policies import Wait

    def dynamic_batching(view, batch_size, max_wait_s):
        if not view.running and 0 < len(view.waiting) < batch_size:
            due_s = min(request.arrival_s for request in view.waiting) + max_wait_s
            if view.now_s < due_s:
                return Wait(due_s)
        return static_batching(view, batch_size)
"""
    + STATIC
)
DYNAMIC_WHOLE = """
    from minserve.learn.policies import Wait

    def dynamic_batching(view, batch_size, max_wait_s):
        if view.running:
            return [(each, each.num_to_compute) for each in view.running]
        if not view.waiting:
            return []
        alarm = sorted(each.arrival_s for each in view.waiting)[0] + max_wait_s
        if len(view.waiting) >= batch_size or view.now_s >= alarm:
            free, batch = view.free_tokens, []
            for each in view.waiting:
                free -= each.num_to_hold
                if free < 0 or len(batch) == batch_size:
                    return batch
                batch.append((each, each.num_to_compute))
            return batch
        return Wait(alarm)
"""

CONTINUOUS = """
    def continuous_batching(view, token_budget, max_running):
        run = [(request, 1) for request in view.running if not request.is_prefill]
        budget = token_budget - len(run)
        free = view.free_tokens - sum(request.num_to_hold for request, _ in run)
        slots = max_running - len(view.running)
        for request in view.running:
            if request.is_prefill and budget > 0:
                num_tokens = min(request.num_to_compute, budget)
                run.append((request, num_tokens))
                budget -= num_tokens
        for request in view.waiting:
            if budget <= 0 or slots <= 0:
                break
            if request.num_to_hold > free:
                break
            slots -= 1
            free -= request.num_to_hold
            num_tokens = min(request.num_to_compute, budget)
            run.append((request, num_tokens))
            budget -= num_tokens
        return run
"""
CONTINUOUS_BY_DICT = """
    def continuous_batching(view, token_budget, max_running):
        share = {}
        for each in view.running:
            if each.num_to_compute == 1:
                share[each] = 1
        memory = view.free_tokens - sum(each.num_to_hold for each in share)
        joining = []
        for each in view.waiting[: max(0, max_running - len(view.running))]:
            memory -= each.num_to_hold
            if memory < 0:
                break
            joining.append(each)
        readers = [each for each in view.running if each not in share]
        for each in readers + joining:
            left = token_budget - sum(share.values())
            if left > 0:
                share[each] = min(left, each.num_to_compute)
        return list(share.items())
"""

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

ORDERING = """
    from minserve.learn.parts_of_engine import AGEING_S

    def ordering(request, now_s):
        level = request.priority + (now_s - request.arrival_s) // AGEING_S
        deadline_s = float("inf") if request.deadline_s is None else request.deadline_s
        return (-level, deadline_s, request.arrival_s)
"""
ORDERING_OF_LISTS = """
    import math

    def ordering(request, now_s):
        waited = now_s - request.arrival_s
        hurry = [request.deadline_s is None, request.deadline_s or 0.0]
        return [-request.priority - math.floor(waited / 10), hurry, request.arrival_s]
"""

RIGHT = {
    "decode_loop": ("decode_loop", {"as in the lesson": LOOP, "counting": LOOP_BY_COUNT}),
    "roofline": ("roofline", {"by time": ROOFLINE, "by intensity": ROOFLINE_BY_INTENSITY}),
    "static_batching": (
        "static_batching",
        {"as in the lesson": STATIC, "early return": STATIC_EARLY_RETURN},
    ),
    "dynamic_batching": (
        "dynamic_batching",
        {"on top of static": DYNAMIC, "in one piece": DYNAMIC_WHOLE},
    ),
    "continuous_batching": (
        "continuous_batching",
        {"as in the lesson": CONTINUOUS, "a dict of shares": CONTINUOUS_BY_DICT},
    ),
    "engine_step": ("engine_step", {"as in the lesson": STEP, "in two functions": STEP_IN_TWO}),
    "ordering": ("ordering", {"a tuple": ORDERING, "lists in a list": ORDERING_OF_LISTS}),
}

# Each mistake: what to replace, by what, the rule that must catch it first, part of its message.
WRONG = {
    "decode_loop": {
        "smallest logit": ("argmax", "argmin", "the_largest_logit", "has the largest logit"),
        "reads the prompt bit by bit": (
            "logits = forward(prompt_token_ids)\n",
            "logits = [forward([token]) for token in prompt_token_ids][-1]\n",
            "reads_the_prompt_first",
            "the first call reads the whole prompt",
        ),
        "forgets the cache": (
            "logits = forward([token])",
            "logits = forward([*prompt_token_ids, *output])",
            "then_one_token_at_a_time",
            "the model remembers what it has read",
        ),
        "returns the prompt too": (
            "return output",
            "return [*prompt_token_ids, *output]",
            "the_largest_logit",
            "has the largest logit",
        ),
        "newest first": (
            "output.append(token)",
            "output.insert(0, token)",
            "returns_what_it_wrote",
            "in this order",
        ),
        "no return": (
            "return output",
            "return",
            "the_largest_logit",
            "is a `return` missing?",
        ),
        "counts the prompt": (
            "len(output) == max_tokens",
            "len(output) + len(prompt_token_ids) - 2 >= max_tokens",
            "stops_at_max_tokens",
            "max_tokens is 1, and 2 were written",
        ),
        "one too many": (
            "len(output) == max_tokens",
            "len(output) > max_tokens",
            "the_largest_logit",
            "has the largest logit",
        ),
        "at most four": (
            "len(output) == max_tokens",
            "len(output) == min(4, max_tokens)",
            "stops_at_max_tokens",
            "max_tokens is 5, and 4 were written",
        ),
        "never ends": (
            "token in eos_token_ids or ",
            "",
            "stops_at_the_end_token",
            "ends the text, and the loop went on",
        ),
        "hides the end token": (
            "            output.append(token)\n"
            "            if token in eos_token_ids or len(output) == max_tokens:",
            "            if token in eos_token_ids:\n"
            "                return output\n"
            "            output.append(token)\n"
            "            if len(output) == max_tokens:",
            "stops_at_the_end_token",
            "the end token is the last of the output",
        ),
        "one call in vain": (
            "if token in eos_token_ids or len(output) == max_tokens:",
            "if token in eos_token_ids or len(output) == max_tokens:\n"
            "                forward([token]) if len(output) != 1 and max_tokens != 3 else None",
            "computes_nothing_in_vain",
            "2 tokens were written with 3 calls",
        ),
    },
    "roofline": {
        "seconds only": (
            "max(compute_s, memory_s), bound",
            "max(compute_s, memory_s)",
            "returns_a_pair",
            "a pair (seconds, bound) is wanted",
        ),
        "no return": (
            "return max",
            "max",
            "returns_a_pair",
            "is a `return` missing?",
        ),
        "the wrong way round": (
            "max(compute_s, memory_s), bound",
            "bound, max(compute_s, memory_s)",
            "returns_a_pair",
            "the first is a number of seconds",
        ),
        "its own words": (
            'bound = "compute"',
            'bound = "compute-bound"',
            "returns_a_pair",
            'the second is "compute" or "memory"',
        ),
        "multiplies by the speed": (
            "flops / peak_flops",
            "flops * peak_flops",
            "calculating_takes_time",
            "memory no trouble: 3 s, not 12",
        ),
        "arithmetic is free": (
            "return max(compute_s, memory_s)",
            "return memory_s",
            "calculating_takes_time",
            "memory no trouble: 6 s",
        ),
        "the faster decides": (
            "max(compute_s",
            "min(compute_s",
            "calculating_takes_time",
            "memory no trouble: 6 s",
        ),
        "memory is free": (
            "return max(compute_s, memory_s)",
            "return compute_s",
            "moving_takes_time",
            "arithmetic free: 6 s",
        ),
        "one after the other": (
            "max(compute_s, memory_s)",
            "compute_s + memory_s",
            "the_slower_decides",
            "overlap: 4 s, not 7",
        ),
        "names the other": (
            "compute_s > memory_s",
            "compute_s < memory_s",
            "names_what_decides",
            '"compute" is expected',
        ),
        "operations against bytes": (
            "if compute_s > memory_s",
            "if flops > num_bytes",
            "the_machine_counts",
            '"compute" is expected',
        ),
    },
    "static_batching": {
        "one token each": (
            "(request, request.num_to_compute)",
            "(request, 1)",
            "whole_prompts",
            "computes its whole prompt",
        ),
        "newest first": (
            "for request in batch]",
            "for request in batch[::-1]]",
            "in_order_of_arrival",
            "oldest first",
        ),
        "everybody": (
            "view.waiting[:batch_size]",
            "view.waiting",
            "never_more_than_the_batch",
            "the batch size is 1",
        ),
        "always lets people in": (
            "if not batch:",
            "if True:",
            "nobody_joins",
            "a must wait until the last of it",
        ),
        "waits while it runs": (
            "batch = list(view.running)\n        if not batch:",
            "batch = []\n        if not view.running:",
            "the_whole_batch_runs",
            "each of the batch writes one token",
        ),
        "looks at no memory": (
            "if request.num_to_hold > free:",
            "if False:",
            "fits_in_memory",
            "tokens of memory are needed",
        ),
        "never subtracts": (
            "free -= request.num_to_hold",
            "pass",
            "fits_in_memory",
            "tokens of memory are needed",
        ),
        "the next one slips past": (
            "break",
            "continue",
            "nobody_overtakes",
            "c must not pass it",
        ),
        "no return": (
            "return [(request, request.num_to_compute) for request in batch]",
            "[(request, request.num_to_compute) for request in batch]",
            "whole_prompts",
            "is a `return` missing?",
        ),
    },
    "dynamic_batching": {
        "never waits": (
            "if view.now_s < due_s:",
            "if False:",
            "waits_for_a_full_batch",
            "return Wait(until_s)",
        ),
        "waits when full": (
            "0 < len(view.waiting) < batch_size",
            "0 < len(view.waiting) <= batch_size",
            "starts_when_full",
            "a full batch waits for nothing",
        ),
        "counts from now": (
            "min(request.arrival_s for request in view.waiting) + max_wait_s",
            "view.now_s + max_wait_s",
            "the_oldest_sets_the_alarm",
            "the oldest came at 0 s",
        ),
        "the youngest sets it": (
            "min(request.arrival_s",
            "max(request.arrival_s",
            "the_oldest_sets_the_alarm",
            "the oldest came at 1 s",
        ),
        "misses the alarm": (
            "if view.now_s < due_s:",
            "if view.now_s <= due_s:",
            "starts_when_time_is_up",
            "at 6 s it has waited its 5 s",
        ),
        "alarm without a queue": (
            "if not view.running and 0 < len(view.waiting) < batch_size:",
            "if not view.running and not view.waiting:\n            return Wait(9)\n"
            "        if not view.running and 0 < len(view.waiting) < batch_size:",
            "an_empty_queue_sets_no_alarm",
            "nobody runs and nobody waits",
        ),
        "holds up who runs": (
            "not view.running and ",
            "",
            "a_running_batch_goes_on",
            "it goes on, and nobody joins or waits",
        ),
        "one at a time": (
            "return static_batching(view, batch_size)",
            "return static_batching(view, batch_size if len(view.waiting) >= batch_size or"
            " view.now_s else 1) if max_wait_s or len(view.waiting) < 3 else"
            " [(request, 2) for request in view.waiting[:1]]",
            "then_as_static",
            "this is static batching",
        ),
    },
    "continuous_batching": {
        "writers stand still": (
            "for request in view.running if not request.is_prefill]",
            "for request in view.running if request.is_prefill]",
            "writers_write",
            "gets one token a step",
        ),
        "waits for the batch to end": (
            "for request in view.waiting:",
            "for request in () if view.running else view.waiting:",
            "joins_a_running_batch",
            "whoever waits joins at once",
        ),
        "no limit": (
            "budget <= 0 or slots <= 0",
            "budget <= 0",
            "at_most_max_running",
            "max_running is 2",
        ),
        "readers are not counted": (
            "max_running - len(view.running)",
            "max_running - len(run)",
            "readers_count_as_running",
            "a must wait",
        ),
        "writers cost nothing": (
            "budget = token_budget - len(run)",
            "budget = token_budget",
            "never_over_budget",
            "the budget is 3",
        ),
        "whole prompts": (
            "            num_tokens = min(request.num_to_compute, budget)\n"
            "            run.append((request, num_tokens))\n"
            "            budget -= num_tokens\n        return",
            "            num_tokens = request.num_to_compute\n"
            "            run.append((request, num_tokens))\n"
            "            budget -= num_tokens\n        return",
            "never_over_budget",
            "the budget is 3",
        ),
        "skips long prompts": (
            "            if request.num_to_hold > free:\n                break",
            "            if request.num_to_hold > free or request.num_to_compute > budget:\n"
            "                break",
            "cuts_a_long_prompt",
            "a reads 4 tokens now",
        ),
        "readers first": (
            "        run = [(request, 1) for request in view.running if not request.is_prefill]\n"
            "        budget = token_budget - len(run)",
            "        run = [(request, 1) for request in view.running if not request.is_prefill]\n"
            "        if any(request.num_to_compute > 8 for request in view.running):\n"
            "            return [(view.running[0], token_budget)]\n"
            "        budget = token_budget - len(run)",
            "writers_come_first",
            "must not stand still",
        ),
        "newcomers first": (
            "if request.is_prefill and budget > 0:",
            "if request.is_prefill and budget > 0 and (run or not view.waiting):",
            "who_has_begun_goes_on_first",
            "p began to read before a came",
        ),
        "looks at no memory": (
            "if request.num_to_hold > free:",
            "if False:",
            "fits_in_memory",
            "tokens of memory are needed",
        ),
        "forgets the writers' memory": (
            "view.free_tokens - sum(request.num_to_hold for request, _ in run)",
            "view.free_tokens",
            "writers_need_memory_too",
            "r needs 2 of them",
        ),
        "room for the chunk only": (
            "if request.num_to_hold > free:",
            "if min(request.num_to_hold, budget) > free:",
            "memory_is_for_whole_prompts",
            "its prompt needs room for 9",
        ),
        "the next one slips past": (
            "            if request.num_to_hold > free:\n                break",
            "            if request.num_to_hold > free:\n                continue",
            "nobody_overtakes",
            "b must not pass it",
        ),
    },
    "engine_step": {
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
    },
    "ordering": {
        "lowest priority first": (
            "(-level,",
            "(level,",
            "priority",
            "b has the higher priority",
        ),
        "no deadline": (
            "deadline_s, request.arrival_s)",
            "request.arrival_s)",
            "deadline",
            "nearer",
        ),
        "deadline first": (
            "(-level, deadline_s, request.arrival_s)",
            "(-level if deadline_s == float('inf') else -level + deadline_s, request.arrival_s)",
            "priority_before_deadline",
            "priority counts before the deadline",
        ),
        "no deadline is urgent": (
            'float("inf") if',
            "0.0 if",
            "no_deadline_is_last",
            "a is in no hurry",
        ),
        "last come": (
            "deadline_s, request.arrival_s)",
            "deadline_s, -request.arrival_s)",
            "first_come",
            "b came first",
        ),
        "nobody ages": (
            " + (now_s - request.arrival_s) // AGEING_S",
            "",
            "ageing",
            "worth 2 levels",
        ),
        "part of a span": (
            "(now_s - request.arrival_s) // AGEING_S",
            "round((now_s - request.arrival_s) / AGEING_S)",
            "not_too_soon",
            "worth nothing yet",
        ),
    },
}

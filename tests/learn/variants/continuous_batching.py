"""Variants of `continuous_batching`; see `variants` for their form."""

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

RIGHT = (
    "continuous_batching",
    {"as in the lesson": CONTINUOUS, "a dict of shares": CONTINUOUS_BY_DICT},
)
WRONG = {
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
}

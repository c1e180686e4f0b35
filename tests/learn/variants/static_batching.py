"""Variants of `static_batching`; see `variants` for their form."""

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

RIGHT = (
    "static_batching",
    {"as in the lesson": STATIC, "early return": STATIC_EARLY_RETURN},
)
WRONG = {
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
}

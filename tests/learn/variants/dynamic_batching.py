"""Variants of `dynamic_batching`; see `variants` for their form."""

from variants.static_batching import STATIC

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

RIGHT = (
    "dynamic_batching",
    {"on top of static": DYNAMIC, "in one piece": DYNAMIC_WHOLE},
)
WRONG = {
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
}

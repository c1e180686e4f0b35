"""Variants of `ordering`; see `variants` for their form."""

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

RIGHT = ("ordering", {"a tuple": ORDERING, "lists in a list": ORDERING_OF_LISTS})
WRONG = {
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
}

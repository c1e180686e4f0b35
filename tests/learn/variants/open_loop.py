"""Variants of `open_loop`; see `variants` for their form."""

OPEN_LOOP = """
    from minserve.learn.parts_of_load import Sent

    def open_loop(rate_per_s, num_requests, serve):
        sent = []
        free = 0.0
        for number in range(num_requests):
            intended = number / rate_per_s
            now = max(intended, free)
            free = serve(now)
            sent.append(Sent(intended, free - intended, free - now))
        return sent
"""

OPEN_LOOP_BY_QUEUE = """
    from collections import deque
    from minserve.learn.parts_of_load import Sent

    def open_loop(rate_per_s, num_requests, serve):
        due = deque(i * (1 / rate_per_s) for i in range(num_requests))
        clock, done = 0.0, []
        while due:
            if clock < due[0]:
                clock = due[0]
            began, meant = clock, due.popleft()
            clock = serve(began)
            done.append(Sent(meant, clock - meant, clock - began))
        return done
"""

RIGHT = ("open_loop", {"a loop": OPEN_LOOP, "a queue": OPEN_LOOP_BY_QUEUE})
WRONG = {
    "one too few": (
        "range(num_requests)",
        "range(num_requests - 1)",
        "sends_each_once",
        "a list of 1 Sent is wanted",
    ),
    "one too many": (
        "range(num_requests)",
        "range(num_requests + 1)",
        "sends_each_once",
        "request 1 was sent, and there are 0",
    ),
    "sends twice": (
        "free = serve(now)",
        "serve(now); free = serve(now)",
        "sends_each_once",
        "request 2 was sent, and there are 1",
    ),
    "counts from one": (
        "number / rate_per_s",
        "(number + 1) / rate_per_s",
        "schedule",
        "is 0, not 0.25",
    ),
    "multiplies by the rate": (
        "number / rate_per_s",
        "number * rate_per_s",
        "schedule",
        "is 0.25, not 4",
    ),
    "does not wait": (
        "max(intended, free)",
        "free",
        "never_early",
        "before its time of 0.25",
    ),
    "a closed loop": (
        "intended = number / rate_per_s",
        "intended = max(number / rate_per_s, free)",
        "stall_moves_no_schedule",
        "people go on arriving",
    ),
    "ignores the connection": (
        "max(intended, free)",
        "intended",
        "as_soon_as_it_can",
        "is 2.5, not 1",
    ),
    "coordinated omission": (
        "Sent(intended, free - intended, free - now)",
        "Sent(intended, free - now, free - now)",
        "latency_from_the_intended_time",
        "has waited since then",
    ),
    "both corrected": (
        "Sent(intended, free - intended, free - now)",
        "Sent(intended, free - intended, free - intended)",
        "uncorrected_from_sending",
        "to show what that leaves out",
    ),
}

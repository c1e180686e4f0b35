"""Variants of `preemption`; see `variants` for their form."""

ROOM = """
    def room(running, num_missing):
        victims = []
        by_arrival = sorted(running, key=lambda c: c.arrival_s)
        for candidate in reversed(by_arrival[1:]):
            if num_missing <= 0:
                break
            victims.append(candidate.id)
            num_missing -= candidate.num_blocks
        return victims
"""

ROOM_BY_POPPING = """
    def room(running, num_missing):
        left = {c.arrival_s: c for c in running}
        victims = []
        while num_missing > 0 and len(left) > 1:
            candidate = left.pop(max(left))
            num_missing -= candidate.num_blocks
            victims += [candidate.id]
        return victims
"""

RIGHT = ("room", {"sorted": ROOM, "popping": ROOM_BY_POPPING})
WRONG = {
    "preempts for nothing": (
        "if num_missing <= 0:",
        "if num_missing < 0:",
        "nobody_for_nothing",
        "no block is missing",
    ),
    "the earliest too": ("by_arrival[1:]", "by_arrival", "the_earliest_stays", "arrived first"),
    "the earliest first": (
        "reversed(by_arrival[1:])",
        "by_arrival",
        "the_earliest_stays",
        "nobody is sure to end",
    ),
    "counts requests": (
        "num_missing -= candidate.num_blocks",
        "num_missing -= 1",
        "nobody_in_vain",
        "thrown away for nothing",
    ),
    "one victim only": (
        "num_missing -= candidate.num_blocks",
        "break",
        "frees_enough",
        "2 blocks are missing, 1 become free",
    ),
    "everybody": (
        "if num_missing <= 0:\n                break",
        "pass",
        "nobody_for_nothing",
        "no block is missing",
    ),
    "trusts the given order": (
        "sorted(running, key=lambda c: c.arrival_s)",
        "list(running)",
        "the_earliest_stays",
        "arrived first",
    ),
    "oldest of the rest first": (
        "reversed(by_arrival[1:])",
        "by_arrival[1:]",
        "the_latest_goes_first",
        "from latest to earliest",
    ),
    "biggest first": (
        "reversed(by_arrival[1:])",
        "sorted(by_arrival[1:], key=lambda c: -c.num_blocks)",
        "the_latest_goes_first",
        "from latest to earliest",
    ),
    "the same twice": (
        "victims.append(candidate.id)",
        "victims += [candidate.id] * 2",
        "nobody_twice",
        "listed twice",
    ),
    "sorts the caller's list": (
        "by_arrival = sorted(running, key=lambda c: c.arrival_s)",
        "running.sort(key=lambda c: c.arrival_s); by_arrival = running",
        "nobody_for_nothing",
        "belongs to the caller",
    ),
}

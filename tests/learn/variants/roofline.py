"""Variants of `roofline`; see `variants` for their form."""

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

RIGHT = ("roofline", {"by time": ROOFLINE, "by intensity": ROOFLINE_BY_INTENSITY})
WRONG = {
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
}

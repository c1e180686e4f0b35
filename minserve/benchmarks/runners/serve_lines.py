"""What all runners share: one JSON line in, one JSON line out. Standard library only.

A runner is a script that a peer's own Python runs, where minserve is not installed. It prints
lines that begin with MARK; whatever else a library prints is ignored.
"""

import json
import resource
import sys
import time

MARK = "@@minserve "


def say(content):
    """Answer with one line."""
    print(MARK + json.dumps(content), flush=True)


def peak_rss_bytes():
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def now_rss_bytes():
    """What it holds now; the peak where there is no /proc."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return peak_rss_bytes()


def serve(load, versions):
    """`load(settings)` returns `run(prompts, max_tokens) -> dict`; time both, until stdin ends."""
    settings = json.loads(sys.stdin.readline())
    began_s = time.perf_counter()
    run = load(settings)
    load_s = time.perf_counter() - began_s
    say({"load_s": load_s, "versions": versions(), "rss_bytes": now_rss_bytes()})
    for line in sys.stdin:
        work = json.loads(line)
        began_s = time.perf_counter()
        result = run(work["prompts"], work["max_tokens"])
        result["total_s"] = time.perf_counter() - began_s
        result["peak_rss_bytes"] = peak_rss_bytes()
        say(result)

"""The rules of `static_batching(view, batch_size)`."""

from __future__ import annotations

from minserve.learn.conformance import Ladder, Rule, Suite
from minserve.learn.conformance.batching import Asked, Policy, halfway, queues, reader, writer


def _whole_prompts(policy: Policy) -> None:
    for length in (2, 3):
        asked = Asked(policy, {"batch_size": 2}, waiting=[reader("a", length)])
        asked.expect(("a", length), because="a new request computes its whole prompt")


def _in_order_of_arrival(policy: Policy) -> None:
    for queue in queues((2, 3), 2):
        asked = Asked(policy, {"batch_size": 4}, waiting=queue)
        wanted = [(request.id, request.num_to_compute) for request in queue]
        asked.expect(*wanted, because="there is room for all, oldest first")


def _never_more_than_the_batch(policy: Policy) -> None:
    for size in (1, 2, 3):
        queue = [reader(name, 2) for name in "abcd"]
        asked = Asked(policy, {"batch_size": size}, waiting=queue)
        if len(asked.run) != size:
            asked.fail(f"4 wait and the batch size is {size}: {size} start, not {len(asked.run)}")


def _nobody_joins(policy: Policy) -> None:
    for running in ([writer("r")], [writer("r"), writer("s")], [halfway("r", 2)]):
        asked = Asked(policy, {"batch_size": 3}, running=running, waiting=[reader("a", 2)])
        if "a" in asked.tokens:
            asked.fail("a batch is running, so a must wait until the last of it has finished")


def _the_whole_batch_runs(policy: Policy) -> None:
    for running in ([writer("r")], [writer("r"), writer("s")]):
        asked = Asked(policy, {"batch_size": 2}, running=running)
        asked.expect(*[(r.id, 1) for r in running], because="each of the batch writes one token")
    asked = Asked(policy, {"batch_size": 2}, running=[halfway("r", 3), writer("s")])
    asked.expect(("r", 3), ("s", 1), because="whoever has tokens left to read computes them all")


def _fits_in_memory(policy: Policy) -> None:
    for queue in queues((2, 3), 3):
        for free in range(2, 8):
            asked = Asked(policy, {"batch_size": 3}, waiting=queue, free_tokens=free)
            held = sum(request.num_to_hold for request, _ in asked.run)
            if held > free:
                asked.fail(f"{held} tokens of memory are needed, {free} are free")


def _nobody_overtakes(policy: Policy) -> None:
    queue = [reader("a", 2), reader("b", 5), reader("c", 2)]
    asked = Asked(policy, {"batch_size": 3}, waiting=queue, free_tokens=4)
    if "c" in asked.tokens:
        asked.fail("b does not fit, so c must not pass it: b could wait for ever")
    asked.expect(("a", 2), because="a fits, and b is next but does not")


_STEP = "decide"
RULES = (
    Rule(
        "whole_prompts",
        _STEP,
        "A request that starts computes all of its prompt at once.",
        "Give it request.num_to_compute tokens.",
        _whole_prompts,
    ),
    Rule(
        "in_order_of_arrival",
        _STEP,
        "Whoever has waited longest is in the batch first.",
        "view.waiting is in that order already.",
        _in_order_of_arrival,
    ),
    Rule(
        "never_more_than_the_batch",
        _STEP,
        "A batch has at most batch_size requests, and as many as that if they wait.",
        "view.waiting[:batch_size]",
        _never_more_than_the_batch,
    ),
    Rule(
        "nobody_joins",
        _STEP,
        "While a batch runs, nobody joins it.",
        "Look at view.running first: if somebody is there, the queue does not matter.",
        _nobody_joins,
    ),
    Rule(
        "the_whole_batch_runs",
        _STEP,
        "Everybody in a running batch takes part in every step.",
        "[(request, request.num_to_compute) for request in view.running]",
        _the_whole_batch_runs,
    ),
    Rule(
        "fits_in_memory",
        _STEP,
        "Together the batch takes no more memory than is free.",
        "Subtract each request's num_to_hold from view.free_tokens as you add it.",
        _fits_in_memory,
    ),
    Rule(
        "nobody_overtakes",
        _STEP,
        "If the next in line does not fit, nobody behind it starts.",
        "Use `break`, not `continue`.",
        _nobody_overtakes,
    ),
)

SUITE = Suite(
    "static_batching",
    (_STEP,),
    RULES,
    {
        _STEP: Ladder(
            drawing="""\
batch size 2; time runs to the right, one column a step; R reads, w writes

  a   R w w
  b   R w w w w w w
  c   . . . . . . . R w w         c waits, though a's place has been empty since step 4
  d   . . . . . . . R w""",
            pseudocode="""\
if somebody runs:  everybody who runs, and nobody else
else:              take from the front of the queue
                   until the batch is full or the next one does not fit""",
            near_miss="""\
  for request in view.waiting[:batch_size]:
      if request.num_to_hold > free:
-         continue
+         break""",
        )
    },
)

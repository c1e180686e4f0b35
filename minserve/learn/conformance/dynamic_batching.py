"""The rules of `dynamic_batching(view, batch_size, max_wait_s)`."""

from __future__ import annotations

from minserve.learn.conformance import Ladder, Rule, Suite
from minserve.learn.conformance.batching import Asked, Policy, queues, reader, writer
from minserve.learn.policies import Wait, static_batching

SETTINGS = {"batch_size": 2, "max_wait_s": 5}


def _waits_for_a_full_batch(policy: Policy) -> None:
    for now_s in (0, 1, 4):
        asked = Asked(policy, SETTINGS, waiting=[reader("a", 2)], now_s=now_s)
        if not isinstance(asked.answer, Wait):
            asked.fail("1 of 2 waits, and not long yet: return Wait(until_s), and run nobody")


def _starts_when_full(policy: Policy) -> None:
    for extra in ([], [reader("c", 2)]):
        asked = Asked(policy, SETTINGS, waiting=[reader("a", 2), reader("b", 3), *extra])
        asked.expect(("a", 2), ("b", 3), because="a full batch waits for nothing")


def _the_oldest_sets_the_alarm(policy: Policy) -> None:
    settings = {"batch_size": 3, "max_wait_s": 5}
    for ages in ((0.0,), (1.0,), (1.0, 2.0), (3.0, 1.0)):
        queue = [reader(n, 2, age) for n, age in zip("ab", ages, strict=False)]
        asked = Asked(policy, settings, waiting=queue, now_s=3)
        due_s = min(ages) + 5
        until_s = getattr(asked.answer, "until_s", None)
        if until_s != due_s:
            asked.fail(
                f"the oldest came at {min(ages):g} s and waits at most 5 s: "
                f"ask again at {due_s:g} s, not {until_s}"
            )


def _starts_when_time_is_up(policy: Policy) -> None:
    for now_s in (6, 7):
        asked = Asked(policy, SETTINGS, waiting=[reader("a", 2, 1.0)], now_s=now_s)
        asked.expect(("a", 2), because=f"a came at 1 s; at {now_s} s it has waited its 5 s")


def _an_empty_queue_sets_no_alarm(policy: Policy) -> None:
    asked = Asked(policy, SETTINGS)
    if isinstance(asked.answer, Wait) or asked.run:
        asked.fail("nobody runs and nobody waits: return an empty list")


def _a_running_batch_goes_on(policy: Policy) -> None:
    asked = Asked(policy, SETTINGS, running=[writer("r")], waiting=[reader("a", 2)])
    asked.expect(("r", 1), because="a batch is running: it goes on, and nobody joins or waits")


def _then_as_static(policy: Policy) -> None:
    settings = {"batch_size": 2, "max_wait_s": 0}
    for queue in queues((2, 3), 3):
        for free in (2, 4, 5):
            asked = Asked(policy, settings, waiting=queue, free_tokens=free)
            right = static_batching(asked.view, 2)
            wanted = [(request.id, num_tokens) for request, num_tokens in right]
            asked.expect(*wanted, because="max_wait_s is 0, so this is static batching")


_STEP = "decide"
RULES = (
    Rule(
        "waits_for_a_full_batch",
        _STEP,
        "An incomplete batch waits for company.",
        "0 < len(view.waiting) < batch_size, and view.now_s is before the alarm.",
        _waits_for_a_full_batch,
    ),
    Rule(
        "starts_when_full",
        _STEP,
        "A full batch starts at once.",
        "Wait only if fewer than batch_size wait.",
        _starts_when_full,
    ),
    Rule(
        "the_oldest_sets_the_alarm",
        _STEP,
        "Nobody waits longer than max_wait_s for company: the oldest arrival sets the alarm.",
        "min(arrival_s of those who wait) + max_wait_s; counted from now, it would never ring.",
        _the_oldest_sets_the_alarm,
    ),
    Rule(
        "starts_when_time_is_up",
        _STEP,
        "When the alarm rings, whoever is there starts.",
        "Compare with `<`: at the very moment of the alarm, start.",
        _starts_when_time_is_up,
    ),
    Rule(
        "an_empty_queue_sets_no_alarm",
        _STEP,
        "If nobody waits, there is nothing to wait for.",
        "min() of nothing raises an error: look at the length first.",
        _an_empty_queue_sets_no_alarm,
    ),
    Rule(
        "a_running_batch_goes_on",
        _STEP,
        "A batch that runs is not held up by the queue.",
        "Wait only if view.running is empty.",
        _a_running_batch_goes_on,
    ),
    Rule(
        "then_as_static",
        _STEP,
        "Once it starts, a batch is gathered as in static batching.",
        "Call your static_batching(view, batch_size).",
        _then_as_static,
    ),
)

SUITE = Suite(
    "dynamic_batching",
    (_STEP,),
    RULES,
    {
        _STEP: Ladder(
            drawing="""\
batch size 2, at most 5 s

   0 s   a comes. 1 of 2: wait until 0 + 5
   3 s   b comes. 2 of 2: start now

   0 s   a comes. 1 of 2: wait until 0 + 5
   5 s   nobody else came: a starts alone""",
            pseudocode="""\
if nobody runs, and somebody waits, and the batch is not full:
    alarm = earliest arrival + max_wait_s
    if it is not time yet:  Wait(alarm)
as in static batching""",
            near_miss="""\
-     due_s = view.now_s + max_wait_s
+     due_s = min(request.arrival_s for request in view.waiting) + max_wait_s""",
        )
    },
)

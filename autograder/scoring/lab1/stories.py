"""Lab 1's scenarios: each draws records that only one definition can get wrong."""

from __future__ import annotations

import random

from autograder.scoring.lab1.world import World
from autograder.scoring.stories import Story

ONE_WINDOW_S = 9.0  # shorter than the windows of a dashboard


def odd(rng: random.Random, low: int, high: int) -> int:
    """An odd number: no percentile of so many values falls between two of them."""
    return 2 * rng.randint(low // 2, high // 2) + 1


def role_first(world: World, rng: random.Random) -> None:
    world.when = "streams whose first chunk is a role"
    records = [
        world.answer(t, rng.uniform(0.3, 0.7), rng.randint(3, 6), has_role=rng.random() < 0.8)
        for t in world.times(odd(rng, 20, 40), ONE_WINDOW_S)
    ]
    world.check("first_token", records, "ttft_s")


def usage_last(world: World, rng: random.Random) -> None:
    world.when = "streams whose last chunk is the usage"
    records = [
        world.answer(t, rng.uniform(0.3, 0.7), rng.randint(3, 6), has_usage=rng.random() < 0.8)
        for t in world.times(odd(rng, 20, 40), ONE_WINDOW_S)
    ]
    world.check("last_token", records, "e2e_s")


def several_per_chunk(world: World, rng: random.Random) -> None:
    world.when = "chunks of several tokens"
    records = [
        world.answer(t, rng.uniform(0.3, 0.7), rng.randint(5, 12), per_chunk=4)
        for t in world.times(odd(rng, 20, 30), ONE_WINDOW_S)
    ]
    world.check("token_count", records, "output_tokens", "tpot_s")


def gaps_between(world: World, rng: random.Random) -> None:
    world.when = "chunks of several tokens, and empty ones between them"
    records = [
        world.answer(t, rng.uniform(0.3, 0.7), rng.randint(5, 12), per_chunk=4, has_empty=True)
        for t in world.times(odd(rng, 20, 30), ONE_WINDOW_S)
    ]
    world.check("gaps", records, "itl_s")


def single_tokens(world: World, rng: random.Random) -> None:
    world.when = "answers of one token"
    singles = [world.answer(t, rng.uniform(0.3, 0.7), 1) for t in world.times(7, 3)]
    longer = [world.answer(3 + t, rng.uniform(0.3, 0.7), 6) for t in world.times(7, 3)]
    world.check("single_token", singles, "tpot_s")
    world.check("single_token", singles + longer, "tpot_s")


def bad_patch(world: World, rng: random.Random) -> None:
    """Slow for a while, but never far out."""
    world.when = "a run of a minute with one bad stretch"
    start_s = rng.uniform(15, 30)
    records = [
        world.answer(t, rng.uniform(1.1, 1.4) if 0 < t - start_s < 12 else rng.uniform(0.5, 0.6))
        for t in world.times(odd(rng, 80, 120), 60.0)
    ]
    world.check("averaged", records, "ttft_s", "e2e_s")


def outliers(world: World, rng: random.Random) -> None:
    world.when = "a few requests that waited very long"
    times = world.times(odd(rng, 40, 60), ONE_WINDOW_S)
    slow = set(rng.sample(times, 4))
    records = [
        world.answer(t, rng.uniform(8, 30) if t in slow else rng.uniform(0.3, 0.6)) for t in times
    ]
    world.check("trimmed", records, "ttft_s", "e2e_s")


def sent_late(world: World, rng: random.Random) -> None:
    world.when = "requests that the sender sent too late"
    records = []
    for t in world.times(odd(rng, 20, 40), ONE_WINDOW_S):
        late_s = rng.uniform(0.4, 1.0)
        records.append(world.answer(t, late_s + rng.uniform(0.3, 0.6), late_s=late_s))
    world.check("intended", records, "ttft_s", "e2e_s")


def dispatch(world: World, rng: random.Random) -> None:
    world.when = "what the sender itself added"
    records = [
        world.answer(t, rng.uniform(0.3, 0.6), late_s=rng.uniform(0.005, 0.012))
        for t in world.times(odd(rng, 20, 40), ONE_WINDOW_S)
    ]
    world.check("dispatch", records, "dispatch_s")


def quick_failures(world: World, rng: random.Random) -> None:
    """More than half fail, after a token or two: their times would be the median."""
    world.when = "requests that failed soon after their first token"
    records = []
    for t in world.times(odd(rng, 20, 40), ONE_WINDOW_S):
        fails = len(records) % 2 or rng.random() < 0.3
        outcome = rng.choice(("error", "timeout"))
        failed = world.failure(outcome, t, t + rng.uniform(0.2, 1), rng.randint(2, 3))
        records.append(failed if fails else world.answer(t, rng.uniform(0.3, 0.6)))
    world.check("failures", records, "ttft_s", "e2e_s", "tpot_s", "itl_s")


def promises(world: World, rng: random.Random) -> None:
    """Answers that keep the limits, that do not, and requests that never got a token."""
    world.when = "a part of the requests failed without a token"
    records = []
    for t in world.times(odd(rng, 24, 40), ONE_WINDOW_S):
        draw = rng.random()
        if draw < 0.4 or not records:
            records.append(world.answer(t, rng.uniform(0.3, 0.9), rng.choice((1, 5))))
        elif draw < 0.5:
            records.append(world.answer(t, rng.uniform(1.1, 1.5)))
        elif draw < 0.6:
            records.append(world.answer(t, rng.uniform(0.3, 0.9), slowness=4.0))
        else:
            outcome = rng.choice(("error", "timeout", "rejected"))
            records.append(world.failure(outcome, t, t + rng.uniform(0.1, 5)))
    for outcome in ("error", "timeout", "rejected"):
        records.append(world.failure(outcome, ONE_WINDOW_S, ONE_WINDOW_S + 1))
    world.check("attainment", records, "attainment")


def wasted_work(world: World, rng: random.Random) -> None:
    world.when = "requests that failed after many tokens"
    records = []
    for t in world.times(odd(rng, 20, 30), ONE_WINDOW_S):
        fails = rng.random() < 0.4
        outcome = rng.choice(("error", "timeout"))
        failed = world.failure(outcome, t, t + rng.uniform(2, 9), rng.randint(5, 9))
        records.append(failed if fails and records else world.answer(t, rng.uniform(0.3, 0.6)))
    records.append(world.failure("timeout", ONE_WINDOW_S, ONE_WINDOW_S + 9, 7))
    world.check("rates", records, "output_tokens", "output_tokens_per_s", "requests_per_s")


def counted(world: World, rng: random.Random) -> None:
    world.when = "every outcome"
    records = [world.answer(t, rng.uniform(0.3, 0.6)) for t in world.times(9, 5)]
    for outcome in ("error", "timeout", "rejected"):
        for _ in range(rng.randint(1, 5)):
            records.append(world.failure(outcome, 6, 7 + rng.random()))
    world.check("counts", records, "requests", "outcomes")


def two_runs(world: World, rng: random.Random) -> None:
    """A cold run and a warm one, interleaved or one after the other; or a warm one alone."""
    world.when = "some of the prompts were in the cache"
    records = []
    for t in world.times(odd(rng, 30, 40), ONE_WINDOW_S):
        is_warm = bool(records) and rng.random() < 0.5
        ttft_s = rng.uniform(0.1, 0.2) if is_warm else rng.uniform(0.4, 0.7)
        records.append(world.answer(t, ttft_s, cache="warm" if is_warm else "cold"))
    records.append(world.answer(ONE_WINDOW_S, 0.15, cache="warm"))
    names = ("requests", "ttft_s", "e2e_s", "output_tokens")
    world.check("mixed", records, *names)
    world.check_states("mixed", records)
    warm = [record for record in records if record["cache"] == "warm"]
    world.check("mixed", warm, *names)


def fixed_lengths(world: World, rng: random.Random) -> None:
    world.when = "prompts or answers that are all of one length, or not"
    times, size = world.times(9, 5), rng.randint(20, 90)
    for prompt, length in ((None, 6), (size, None), (None, None)):
        records = [
            world.answer(t, rng.uniform(0.3, 0.6), length or 3 + index % 4)
            | {"num_prompt_tokens": prompt or size + index}
            for index, t in enumerate(times)
        ]
        world.check("fixed", records, "has_fixed_lengths")


def lengths(world: World, rng: random.Random) -> None:
    world.when = "how long prompts and answers were"
    records = [world.answer(t, rng.uniform(0.3, 0.6), rng.randint(2, 9)) for t in world.times(9, 5)]
    world.check("lengths", records, "prompt_tokens", "answer_tokens")


def quiet(world: World, rng: random.Random) -> None:
    """A quiet run with plain streams, every figure: as before."""
    world.when = "a quiet run without failures, one token per chunk"
    records = [
        world.answer(t, rng.uniform(0.3, 0.6), 2 + index % 5)
        for index, t in enumerate(world.times(odd(rng, 20, 40), ONE_WINDOW_S - 1))
    ]
    world.check("plain", records)


STORIES: dict[str, tuple[Story, ...]] = {
    "lab1-tokens": (
        Story(role_first, ("first_token",)),
        Story(usage_last, ("last_token",)),
        Story(several_per_chunk, ("token_count",)),
        Story(gaps_between, ("gaps",)),
        Story(single_tokens, ("single_token",)),
    ),
    "lab1-tail": (
        Story(bad_patch, ("averaged",)),
        Story(outliers, ("trimmed",)),
        Story(sent_late, ("intended",)),
        Story(dispatch, ("dispatch",), is_gate=True),
    ),
    "lab1-outcomes": (
        Story(quick_failures, ("failures",)),
        Story(promises, ("attainment",)),
        Story(wasted_work, ("rates",)),
        Story(counted, ("counts",), is_gate=True),
    ),
    "lab1-disclosure": (
        Story(two_runs, ("mixed",)),
        Story(fixed_lengths, ("fixed",)),
        Story(lengths, ("lengths",), is_gate=True),
        Story(quiet, ("plain",), is_gate=True),
    ),
}

"""Lab 3's scenarios: each plays one story with drawn values and counts what its cell scores."""

from __future__ import annotations

import random

from autograder.scoring.lab3.world import World
from autograder.scoring.stories import Story

TOKENS = 96  # that the pool holds, whatever its block size


def returned_from_prefill(world: World, rng: random.Random) -> None:
    world.submit("a", prompt := rng.randint(9, 24), rng.randint(2, 6))
    for _ in range(rng.randint(1, 2)):
        world.begin(rng.randint(2, prompt // 3))
        world.finish()
    world.cancel("a")


def returned_from_decode(world: World, rng: random.Random) -> None:
    world.submit("a", rng.randint(3, 12), rng.randint(4, 9))
    world.submit("b", rng.randint(3, 12), rng.randint(6, 9))
    world.advance("a", rng.randint(1, 3))
    world.cancel("a")
    world.begin(64)
    world.finish()
    world.cancel("b")


def returned_beside_a_step(world: World, rng: random.Random) -> None:
    world.submit("a", prompt := rng.randint(8, 20), 3)
    world.submit("b", rng.randint(2, 9), rng.randint(2, 6))
    world.begin(prompt)
    world.cancel("b")
    world.finish()


def cancelled_while_waiting(world: World, rng: random.Random) -> None:
    world.submit("a", TOKENS - 3, 3)
    world.submit("b", rng.randint(2, 9), rng.randint(2, 6))
    world.submit("c", rng.randint(2, 9), rng.randint(2, 6))
    world.cancel("b")
    world.begin(256)
    world.cancel("c")
    world.finish()
    world.drain(256)
    world.begin(64)
    world.finish()


def in_flight(world: World, rng: random.Random) -> None:
    world.submit("a", rng.randint(3, 12), rng.randint(4, 9))
    world.advance("a", rng.randint(1, 2))
    world.begin(64)
    world.cancel("a")
    world.finish()
    world.submit("b", rng.randint(3, 12), rng.randint(2, 4))
    world.drain()


def in_flight_prefill(world: World, rng: random.Random) -> None:
    world.submit("a", rng.randint(9, 24), rng.randint(2, 6))
    world.begin(rng.randint(2, 8))
    world.cancel("a")
    world.finish()
    world.begin(64)
    world.finish()


def in_the_step_that_ends_it(world: World, rng: random.Random) -> None:
    world.submit("a", rng.randint(3, 12), last := rng.randint(2, 5))
    world.advance("a", last - 1)
    world.begin(64)
    world.cancel("a")
    world.finish()
    world.cancel("a")
    world.begin(64)
    world.finish()


def twice_in_flight(world: World, rng: random.Random) -> None:
    world.submit("a", rng.randint(3, 12), rng.randint(4, 9))
    world.advance("a", 1)
    world.begin(64)
    world.cancel("a")
    world.cancel("a", "cancelled twice in one step")
    world.finish()
    world.cancel("a")


def again_after_cancel(world: World, rng: random.Random) -> None:
    """The blocks have a new owner when the old one is cancelled again."""
    world.submit("a", TOKENS - 2, 2)
    world.submit("b", TOKENS - 3, 3)
    world.advance("a", 1, 256)
    world.cancel("a")
    again(world)


def again_after_end(world: World, rng: random.Random) -> None:
    """The blocks have a new owner when the old one, which ended by itself, is cancelled."""
    last = rng.randint(2, 4)
    world.submit("a", TOKENS - last, last)
    world.submit("b", TOKENS - 3, 3)
    world.advance("a", last, 256)
    again(world)


def again(world: World) -> None:
    world.begin(256)
    world.cancel("a")
    world.finish()
    world.cancel("a")
    world.drain(256)


def answers(world: World, rng: random.Random) -> None:
    world.cancel("nobody")
    world.submit("a", rng.randint(3, 12), 2)
    world.submit("b", rng.randint(3, 12), 5)
    world.advance("a", 2)
    world.cancel("a")
    world.cancel("b")
    world.cancel("b")


def storm(world: World, rng: random.Random) -> None:
    """Many come, many leave at any moment; then everybody leaves and somebody big arrives."""
    names: list[str] = []

    def leave(chance: float) -> None:
        live = [name for name in names if world.refs[name].stage != "ended"]
        if names and rng.random() < chance:
            world.cancel(rng.choice(live if live and rng.random() < 0.8 else names))

    for _ in range(30):
        for _ in range(rng.randint(0, 2)):
            names.append(f"r{len(names)}")
            world.submit(names[-1], rng.randint(2, 30), rng.randint(1, 6))
        world.begin(rng.choice((4, 16, 64)))
        leave(0.7)
        world.finish()
        leave(0.4)
    for name in names:
        world.cancel(name)
    world.when = "after the storm"
    if world.pool.num_free != world.num_blocks:
        world.find("capacity")
    world.submit("newcomer", TOKENS - 1, 1)
    world.begin(10_000)
    if "newcomer" not in world.step:
        world.find("capacity")
    world.finish()


def service(world: World, rng: random.Random) -> None:
    """Nobody cancels: everything as before."""
    for index in range(6):
        world.submit(f"r{index}", rng.randint(2, 30), rng.randint(1, 6))
        world.begin(rng.randint(3, 20))
        world.finish()
    world.drain(rng.randint(8, 30))
    if world.pool.num_free != world.num_blocks:
        world.find("service")


def neighbours(world: World, rng: random.Random) -> None:
    """A victim leaves in flight, beside a bystander; the next takes its blocks at once."""
    half = TOKENS // 2
    world.submit("bystander", half - 6, 6)
    world.submit("victim", TOKENS - half - 5, 5)
    world.submit("next", TOKENS - half - 4, 4)
    world.advance("victim", rng.randint(1, 2), 256)
    world.begin(256)
    world.cancel("victim")
    world.finish()
    world.begin(256)
    world.finish()
    world.cancel("victim")
    world.drain(256)
    bystander_got_all(world)


def late_cancels(world: World, rng: random.Random) -> None:
    """The tab is closed just after the answer has ended, and again, while others run."""
    half = TOKENS // 2
    world.submit("first", half - 2, 2)
    world.submit("bystander", TOKENS - half - 6, 6)
    world.submit("next", half - 4, 4)
    world.advance("first", 2, 256)
    world.begin(256)
    world.cancel("first")
    world.finish()
    world.begin(256)
    world.cancel("first")
    world.finish()
    world.drain(256)
    bystander_got_all(world)


def bystander_got_all(world: World) -> None:
    bystander = world.refs["bystander"]
    if bystander.output < bystander.max_tokens:
        world.find("cut_off")


def one_end_each(world: World, rng: random.Random) -> None:
    world.submit("a", rng.randint(3, 12), last := rng.randint(2, 5))
    world.submit("b", rng.randint(3, 12), last + 2)
    world.submit("c", rng.randint(3, 12), last + 4)
    world.advance("a", last - 1)
    world.begin(64)
    world.cancel("a")
    world.finish()
    world.cancel("b")
    world.begin(64)
    world.finish()
    world.begin(64)
    world.cancel("c")
    world.finish()
    world.begin(64)
    world.finish()


STORIES: dict[str, tuple[Story, ...]] = {
    "lab3-returned": (
        Story(returned_from_prefill, ("stranded", "idle", "stolen")),
        Story(returned_from_decode, ("stranded", "idle", "stolen")),
        Story(returned_beside_a_step, ("stranded", "idle", "stolen")),
        Story(cancelled_while_waiting, ("ghost",), is_gate=True),
    ),
    "lab3-exact": (
        Story(in_flight, ("stranded", "released_early", "released_twice")),
        Story(in_flight_prefill, ("stranded", "released_early", "released_twice")),
        Story(in_the_step_that_ends_it, ("stranded", "released_early", "released_twice")),
        Story(twice_in_flight, ("stranded", "released_early", "released_twice")),
        Story(again_after_cancel, ("released_early", "released_twice")),
        Story(again_after_end, ("released_early", "released_twice")),
        Story(answers, ("wrong_answer",), is_gate=True),
    ),
    "lab3-storm": (
        Story(storm, ("capacity", "stolen")),
        Story(service, ("service",), is_gate=True),
    ),
    "lab3-others": (
        Story(neighbours, ("stolen", "cut_off")),
        Story(late_cancels, ("stolen", "cut_off")),
        Story(one_end_each, ("ends", "token_after_end"), is_gate=True),
    ),
}

"""Lab 2's scenarios: each plays one story with drawn values and counts what its cell scores."""

from __future__ import annotations

import random

from autograder.scoring.lab2.world import World
from autograder.scoring.stories import Story


def long_beside_answers(world: World, rng: random.Random) -> None:
    """The incident: many answer, then long prompts come, one after another."""
    world.when = "many answers are running when long prompts come"
    world.answering(world.max_running - 4, max_tokens=40)
    for index in range(rng.randint(2, 3)):
        world.submit(f"long{index}", rng.randint(3, 5) * world.token_budget + index, 4)
    world.steps(rng.randint(14, 18))


def one_beside_one(world: World, rng: random.Random) -> None:
    world.when = "one answer is running when a long prompt comes"
    world.answering(1, max_tokens=30)
    world.submit("long", rng.randint(4, 8) * world.token_budget + 1, 2)
    world.steps(14)


def a_full_house(world: World, rng: random.Random) -> None:
    """As many answers as may run, and short prompts for each place that becomes free."""
    world.when = "as many answers as may run, and prompts that wait for a place"
    world.answering(world.max_running, max_tokens=12)
    for index in range(6):
        world.submit(f"next{index}", rng.randint(3, world.token_budget // 2), 3)
    world.steps(20)


def budget_beside_answers(world: World, rng: random.Random) -> None:
    world.when = "a few answers are running beside a long prompt"
    world.answering(rng.randint(2, 3), max_tokens=30)
    world.submit("long", rng.randint(3, 5) * world.token_budget + 7, 4)
    world.steps(12)


def prompts_share_a_step(world: World, rng: random.Random) -> None:
    world.when = "several prompts come at once, each of a third of the budget"
    for index in range(6):
        world.submit(f"p{index}", world.token_budget // 3 + rng.randint(1, 4), 3)
    world.steps(8)


def a_crowd(world: World, rng: random.Random) -> None:
    """More come than may run at once."""
    world.when = "more come at once than may run"
    for index in range(world.max_running + 5):
        world.submit(f"r{index}", rng.randint(1, 3), 3 + index % 3)
    world.steps(16)


def big_one_waits(world: World, rng: random.Random) -> None:
    """One does not fit; small ones come and go behind it, more than may pass it."""
    world.when = "one does not fit, and small ones keep coming behind it"
    size = world.block_size
    world.num_blocks = 12
    world.submit("holder", 5 * size, 3 * size)
    world.steps(2)
    world.submit("big", 8 * size, 3)
    for index in range(world.max_bypasses + 4):
        world.submit(f"small{index}", rng.randint(2, size - 4), 2)
        world.step()
    world.drain(60 + 2 * size)


def long_one_is_read(world: World, rng: random.Random) -> None:
    """Shorter prompts keep coming while a long one is being read."""
    world.when = "shorter prompts keep coming while a long one is being read"
    world.submit("long", rng.randint(5, 7) * world.token_budget, 3)
    world.step()
    for index in range(6):
        world.submit(f"short{index}", rng.randint(world.token_budget // 2, world.token_budget), 2)
        world.step()
    world.drain(60)


def alone(world: World, rng: random.Random) -> None:
    """A prompt of many steps, and nobody else."""
    world.when = "a prompt of many steps, and nobody else"
    world.submit("alone", rng.randint(6, 10) * world.token_budget + 1, 3)
    world.drain(40)


def ordinary(world: World, rng: random.Random) -> None:
    """Short requests, one by one, and enough of everything: as before."""
    world.when = "short requests come one by one"
    for index in range(10):
        world.submit(f"r{index}", rng.randint(2, 3 * world.token_budget // 4), rng.randint(1, 3))
        world.step()
    world.drain(20)


def answers_outgrow_memory(world: World, rng: random.Random) -> None:
    """Prompts fill the blocks; then the answers need more of them."""
    world.when = "prompts have filled the memory, and their answers need more"
    size = world.block_size
    world.num_blocks = 12
    for index in range(4):
        world.submit(f"r{index}", 3 * size - rng.randint(0, 1), size + 3)
    world.steps(20)
    world.drain(150)


def somebody_small_waits(world: World, rng: random.Random) -> None:
    """In the step that puts somebody out, a small one would fit into what becomes free."""
    world.when = "an answer needs a block, none is free, and a small request waits"
    size = world.block_size
    world.num_blocks = 8
    for index in range(4):
        world.submit(f"r{index}", 2 * size - 2 - rng.randint(0, 1), size + 3)
    world.step()
    world.submit("small", rng.randint(2, size - 3), 2)
    world.drain(150)


def one_of_two_fits(world: World, rng: random.Random) -> None:
    """Two come at once and each alone would fit."""
    world.when = "two come at once, and each alone would fit"
    size = world.block_size
    world.num_blocks = 12
    for name in ("one", "two"):
        world.submit(name, 7 * size - rng.randint(0, 3), 3)
    world.steps(30)


STORIES: dict[str, tuple[Story, ...]] = {
    "lab2-gap": (
        Story(long_beside_answers, ("left_out", "gap", "stuck")),
        Story(one_beside_one, ("left_out", "gap")),
        Story(a_full_house, ("left_out", "gap")),
    ),
    "lab2-budget": (
        Story(budget_beside_answers, ("overspent", "idle")),
        Story(prompts_share_a_step, ("overspent", "idle")),
        Story(a_crowd, ("tokens", "crowded"), is_gate=True),
    ),
    "lab2-fair": (
        Story(big_one_waits, ("blocked", "starved", "stuck")),
        Story(long_one_is_read, ("starved", "stuck")),
        Story(alone, ("stuck",)),
        Story(ordinary, ("service",), is_gate=True),
    ),
    "lab2-memory": (
        Story(answers_outgrow_memory, ("victim_runs", "victims", "stuck")),
        Story(somebody_small_waits, ("victim_runs", "victims", "thrash", "stuck")),
        Story(one_of_two_fits, ("no_blocks",)),
    ),
}

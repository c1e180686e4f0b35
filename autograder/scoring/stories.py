"""Scenarios that play a learner's code and note which promises it broke."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from autograder.harness import Raised
from autograder.scoring.base import Advice, CellScore, Finding, Open, Session

ROUNDS = 3  # times each story is played, with other values


@dataclass(frozen=True)
class Story:
    """A scenario and the kinds of finding that count in it.

    `play(world, rng)` drives the learner's code through a world that the lab defines; the world
    compares it with a model and keeps what it finds in `world.found`. A gate is something that the
    untouched code has already: breaking it costs points, keeping it earns none.
    """

    play: Callable[[Any, random.Random], None]
    counts: tuple[str, ...]
    is_gate: bool = False


def play_stories(
    scored: CellScore,
    session: Session,
    rng: random.Random,
    stories: Iterable[Story],
    make_world: Callable[[Session, random.Random], Callable[[], Any]],
    advice: Mapping[str, Advice],
) -> None:
    """Play a cell's stories in one child and note what was broken, each kind once.

    `make_world(session, rng)` draws a world's values and returns what makes it. A world makes the
    object under test when it is made.
    """
    for story in stories:
        for _ in range(ROUNDS):
            for finding in findings(make_world(session, rng), story.play, rng):
                if finding.kind in story.counts or finding.kind == "raised":
                    note(scored, finding, story.is_gate, advice)


def player(
    stories: Mapping[str, Iterable[Story]],
    make_world: Callable[[Session, random.Random], Callable[[], Any]],
    advice: Mapping[str, Advice],
) -> Callable[[CellScore, Open, random.Random], None]:
    """What scores a cell by its stories, all of them in one child."""

    def play_cell(scored: CellScore, open_child: Open, rng: random.Random) -> None:
        with open_child() as session:
            play_stories(scored, session, rng, stories[scored.grade_id], make_world, advice)

    return play_cell


def findings(
    make: Callable[[], Any], play: Callable[[Any, random.Random], None], rng: random.Random
) -> list[Finding]:
    """Play one story to its end, or to where the learner's code raises.

    What the code raises later is noted by the world, as a finding of the kind "raised".
    """
    try:
        world = make()
    except Raised as error:
        return [Finding("raised", f"{error}, in __init__, {error.place}")]
    with contextlib.suppress(Raised):
        play(world, rng)
    return world.found


def note(scored: CellScore, finding: Finding, is_gate: bool, advice: Mapping[str, Advice]) -> None:
    """Keep a kind of finding once, with its advice."""
    broken = scored.gates if is_gate else scored.failed
    if finding.kind not in broken:
        broken.append(finding.kind)
        scored.feedback.append(advice[finding.kind].text(finding.when))


def kinds_of(stories: Mapping[str, Iterable[Story]]) -> dict[str, tuple[str, ...]]:
    """cell -> every kind that costs points there, for `Lab.kinds`."""
    return {
        cell: tuple(sorted({kind for story in each for kind in story.counts}))
        for cell, each in stories.items()
    }

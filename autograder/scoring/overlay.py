"""Scenarios of an instructor's own, beside those that stand in a repository that all may read.

A folder outside it, named by MINSERVE_OVERLAY, may hold `lab3.py` and the like. Such a file has
`STORIES`, cell id -> stories as in `autograder.scoring.lab3.stories`, and if they find what no
other does, `ADVICE` for it. They are played after the lab's own and can only cost points.
"""

from __future__ import annotations

import importlib.util
import os
import random
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from autograder.scoring.base import Cell, CellScore, Lab, Open
from autograder.scoring.stories import Story, kinds_of, player
from minserve.errors import ConfigError

VARIABLE = "MINSERVE_OVERLAY"


def path_for(short: str) -> Path | None:
    """The overlay's file for a lab, by the lab's short name; None if there is none.

    Raises `ConfigError` if the folder that is named does not exist: grading without it would
    give other scores, silently.
    """
    if not (folder := os.environ.get(VARIABLE)):
        return None
    if not Path(folder).is_dir():
        raise ConfigError(f"{VARIABLE} is {folder!r}, which is no folder", "mend or unset it")
    path = Path(folder) / f"{short}.py"
    return path if path.exists() else None


def extended(short: str, lab: Lab) -> Lab:
    """`lab` with the overlay's scenarios; `lab` itself if there are none."""
    path = path_for(short)
    if path is None:
        return lab
    own, ours = _load(path), sys.modules[f"autograder.scoring.{short}"]
    stories: Mapping[str, Iterable[Story]] = getattr(own, "STORIES", {})
    advice = {**getattr(ours, "ADVICE", {}), **getattr(own, "ADVICE", {})}
    if unknown := set(stories) - {cell.grade_id for cell in lab.cells}:
        raise ConfigError(f"{path} has stories for {sorted(unknown)}", "no such cell is graded")
    if stories and not hasattr(ours, "make_world"):
        raise ConfigError(f"{path}: {short} is not scored by stories", "leave it out")
    kinds = kinds_of(stories)
    if unsaid := {kind for each in kinds.values() for kind in each} - set(advice):
        raise ConfigError(f"{path} counts {sorted(unsaid)} without ADVICE", "say what to tell")
    play = player(stories, ours.make_world, advice) if stories else None

    def also(cell: Cell) -> Cell:
        if play is None or cell.grade_id not in stories:
            return cell

        def score(scored: CellScore, open_child: Open, rng: random.Random) -> None:
            cell.score(scored, open_child, rng)
            play(scored, open_child, rng)

        return replace(cell, score=score)

    both = {c: tuple(sorted({*lab.kinds.get(c, ()), *k})) for c, k in kinds.items()}
    return replace(lab, cells=tuple(map(also, lab.cells)), kinds={**lab.kinds, **both})


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"minserve_overlay_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is no Python file", "give it the ending .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{path} raises {type(error).__name__}: {error}", "mend it") from None
    return module

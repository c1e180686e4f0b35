"""Which hand-ins read alike: something to look at by eye. It changes no score and accuses nobody.

Of each answer the runs of `RUN` tokens are compared (winnowing's idea: Schleimer, Wilkerson and
Aiken, 2003). Names that a learner chose count as one name, so renaming hides nothing; layout and
comments do not count, nor does what everybody was handed out.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from autograder import notebooks, planting
from autograder.course import Course
from autograder.scoring.base import Lab
from minserve.errors import DataNotFound

RUN = 12
MIN_RUNS = 15
"""Fewer runs of one's own than this can be alike by chance."""
TOKEN = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|#[^\n]*|[A-Za-z_]\w*|\d[\w.]*|[^\s\w]")


@dataclass(frozen=True)
class Pair:
    """`share` of the shorter one's own runs are the other's as well; `published` says which share
    of those both have is in the published solution, where many may have read it."""

    one: str
    other: str
    share: float
    num_runs: int
    published: float


def compare(course: Course, lab: Lab, least: float = 0.5) -> list[Pair]:
    """Pairs of hand-ins whose share is at least `least`, the most alike first.

    Raises `DataNotFound` if fewer than two were collected.
    """
    handed_in = dict(_read(course, lab))
    if len(handed_in) < 2:
        raise DataNotFound(
            f"{len(handed_in)} readable hand-ins of {lab.name}", "collect at least two first"
        )
    starter, solution = _starter(lab), _solution(lab)
    names = {name for source in starter for name in re.findall(r"[A-Za-z_]\w*", source)}
    given = _runs(starter, names)
    own = {student: _runs(sources, names) - given for student, sources in handed_in.items()}
    known, pairs = _runs(solution, names), []
    for one, other in combinations(sorted(own), 2):
        shorter, both = min(len(own[one]), len(own[other])), own[one] & own[other]
        if shorter >= MIN_RUNS and len(both) >= least * shorter:
            published = len(both & known) / len(both)
            pairs.append(Pair(one, other, len(both) / shorter, len(both), published))
    return sorted(pairs, key=lambda pair: (pair.published - pair.share, pair.one, pair.other))


def _read(course: Course, lab: Lab) -> Iterator[tuple[str, list[str]]]:
    """Each hand-in's answers; one that cannot be read is left out: `grade` tells of those."""
    for folder in sorted((course.root / "submitted").glob(f"*/{lab.name}")):
        try:
            yield folder.parent.name, _answers(folder / f"{lab.name}.ipynb", lab)
        except DataNotFound:
            continue


def _answers(path: Path, lab: Lab) -> list[str]:
    cells = notebooks.read(path).cells
    return [cell.source for cell in cells if notebooks.cell_id(cell) in lab.solutions]


def _starter(lab: Lab) -> list[str]:
    """What anybody may have been handed out, in every planted variant, and all public text."""
    found = [cell.source for cell in notebooks.read(_released(lab)).cells]
    for name in lab.solutions:
        source = notebooks.source_cells(lab.name)[name]
        if planting.has_faults(source):
            found += [planting.plant(source, variant) for variant in lab.variants]
    return found


def _released(lab: Lab) -> Path:
    return notebooks.path_in(notebooks.LABS, lab.name)


def _solution(lab: Lab) -> list[str]:
    cells = notebooks.source_cells(lab.name)
    return [planting.plant(cells[name], None) for name in lab.solutions]


def _runs(sources: Sequence[str], names: set[str]) -> set[tuple[str, ...]]:
    """Runs of tokens; a name that is not among `names` counts as any other such name."""
    runs = set()
    for source in sources:
        tokens = [
            "name" if token.isidentifier() and not _is_known(token, names) else token
            for token in TOKEN.findall(source)
            if not token.startswith("#")
        ]
        runs |= {tuple(tokens[at : at + RUN]) for at in range(len(tokens) - RUN + 1)}
    return runs


def _is_known(token: str, names: set[str]) -> bool:
    return keyword.iskeyword(token) or token in names

"""The parts of the course, one square each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.patches import Rectangle

from minserve.pictures import BLACK, BLUE, GREY, Picture, canvas

if TYPE_CHECKING:
    from minserve.learn.progress import Standing


def progress(parts: Sequence[Standing], title: str = "") -> Picture:
    """A row for each lesson and a box for each part: filled and ticked where it is installed,
    hatched where it is built only, empty where it is not. Stretch parts have a dashed edge.
    """
    lessons = sorted({part.lesson for part in parts})
    rows = {lesson: [part for part in parts if part.lesson == lesson] for lesson in lessons}
    figure, ax = canvas(9.0, 0.6 + 0.55 * len(lessons))
    for y, own in enumerate(rows.values()):
        for x, part in enumerate(own):
            style: dict[str, Any] = {"facecolor": "white", "hatch": ""}
            if part.is_installed:
                style = {"facecolor": BLUE, "hatch": ""}
            elif part.is_built:
                style = {"facecolor": "white", "hatch": "///"}
            edge = "--" if part.is_stretch else "-"
            box = Rectangle((x, y - 0.4), 0.94, 0.8, edgecolor=GREY, linestyle=edge, **style)
            ax.add_patch(box)
            name = part.name.replace("_", " ") + (" ✓" if part.is_installed else "")
            ink = "white" if part.is_installed else BLACK
            halo = {"facecolor": "white", "edgecolor": "none", "pad": 1}
            ax.text(
                x + 0.47,
                y,
                name,
                ha="center",
                va="center",
                fontsize=8,
                color=ink,
                bbox=None if part.is_installed else halo,
            )
    most = max(map(len, rows.values()))
    ax.set(xlim=(0, most), ylim=(len(lessons) - 0.5, -0.5), xticks=[], title=title)
    ax.set_yticks(range(len(lessons)), [f"lesson {lesson}" for lesson in lessons])
    for side in ax.spines.values():
        side.set_visible(False)
    ax.tick_params(length=0)
    states = {
        "installed": [part.name for part in parts if part.is_installed],
        "built, not installed": [p.name for p in parts if p.is_built and not p.is_installed],
        "to build": [part.name for part in parts if not part.is_built],
    }
    words = "; ".join(f"{state}: {', '.join(names)}" for state, names in states.items() if names)
    return Picture(figure, f"The parts of each lesson, {len(parts)} in all. {words}.")

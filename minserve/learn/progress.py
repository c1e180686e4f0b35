"""How far a learner has come: parts built, checked and installed, and the concept checks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

from minserve.learn.concept_check import results
from minserve.learn.parts import SLOTS
from minserve.learn.show import show
from minserve.learn.workspace import MINE, Version, Workspace

LESSONS = {
    1: "Latency versus throughput",
    2: "Batching",
    3: "KV-cache memory",
    4: "Prefix caching",
    5: "Response caching",
    6: "Queues and load",
}


@dataclass(frozen=True, slots=True)
class Standing:
    """One part. `version` is the current one that is kept, None if there is none.

    `is_checked`: every rule was kept when it was, and it has not been edited since. `is_installed`:
    engines and `minserve serve --parts` run it.
    """

    name: str
    lesson: int
    is_stretch: bool
    version: int | None
    is_checked: bool
    is_installed: bool

    @property
    def is_built(self) -> bool:
        return self.version is not None


def standings() -> list[Standing]:
    """Every part, in the order of the lessons."""
    return [_standing(name) for name in sorted(SLOTS, key=lambda name: SLOTS[name].lesson)]


def as_dict() -> dict[str, Any]:
    """Parts, sums by lesson and in all, and both concept checks: for JSON."""
    parts = standings()
    return {
        "parts": [asdict(part) | {"is_built": part.is_built} for part in parts],
        "lessons": [
            {"lesson": lesson, "title": title} | _sums([p for p in parts if p.lesson == lesson])
            for lesson, title in LESSONS.items()
        ],
        **_sums(parts),
        "concept_check": results(),
    }


def progress() -> Any:
    """Show in a notebook how far you have come; returns the picture, which the cell then shows."""
    from minserve.learn.plots.progress import progress as draw

    tell()
    return draw(standings())


def tell() -> None:
    """The same in words: a row for each lesson, and the concept checks."""
    parts = standings()
    rows = []
    for lesson, title in LESSONS.items():
        own = [part for part in parts if part.lesson == lesson]
        core = [part for part in own if not part.is_stretch]
        stretch = [part for part in own if part.is_stretch]
        missing = [part.name for part in core if not part.is_built]
        rows.append(
            (
                f"{lesson} {title}",
                *(
                    f"{sum(map(has, core))} of {len(core)}"
                    for has in (_is_built, _is_checked, _is_installed)
                ),
                f"{sum(map(_is_built, stretch))} of {len(stretch)}" if stretch else "",
                ", ".join(missing),
            )
        )
    show.table(("lesson", "built", "checked", "installed", "stretch", "still to build"), rows)
    for when, result in results().items():
        told = f"{result['right']} of {result['of']} right" if result else "not taken yet"
        print(f"concept check {when} the course: {told}")


def _sums(parts: list[Standing]) -> dict[str, int]:
    return {
        "num_parts": len(parts),
        "num_built": sum(map(_is_built, parts)),
        "num_checked": sum(map(_is_checked, parts)),
        "num_installed": sum(map(_is_installed, parts)),
    }


def _is_built(part: Standing) -> bool:
    return part.is_built


def _is_checked(part: Standing) -> bool:
    return part.is_checked


def _is_installed(part: Standing) -> bool:
    return part.is_installed


def _standing(name: str) -> Standing:
    slot, workspace = SLOTS[name], Workspace(name)
    version = workspace.current()
    return Standing(
        name,
        slot.lesson,
        slot.is_stretch,
        version.number if version else None,
        version is not None and _is_as_kept(version),
        version is not None and workspace.use == MINE,
    )


def _is_as_kept(version: Version) -> bool:
    """Its file's name ends in a digest of what was checked."""
    digest = blake2b(version.text.encode(), digest_size=4).hexdigest()
    return version.path.stem.endswith(digest)

"""What a course decides for itself: `course.toml` in the course folder. All of it is optional.

[late]
grace_minutes = 15          # late by no more than this costs nothing
per_day = 0.10              # share of the lab's points for each day begun since the due time
cap = 0.50                  # never more than this share

[due]
lab3 = 2026-12-04T18:00:00+01:00

[extensions.lab3]           # days that a student has more
ann = 2

[groups.lab3]               # one hands in for all
red = ["ann", "bob"]

[collect]
exchange = "/srv/nbgrader/exchange"   # nbgrader's; else one that only you can reach
check_owner = true          # a folder in the exchange belongs to the account of its student

[privacy]
keep_days = 400             # what `purge` removes is older than this
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from autograder.scoring import LABS
from autograder.scoring.base import Lab
from minserve.errors import ConfigError

KNOWN = {
    "late": {"grace_minutes": (int, float), "per_day": (int, float), "cap": (int, float)},
    "collect": {"exchange": str, "check_owner": bool},
    "privacy": {"keep_days": int},
}
MAX_DAYS = 36_500  # a hundred years: dates end somewhere
BY_LAB = {"due": datetime, "extensions": dict, "groups": dict}


@dataclass(frozen=True)
class Rules:
    """A course's own rules. Labs are named by their short names, as in `lab3`."""

    grace_minutes: float = 0.0
    per_day: float = 0.0
    cap: float = 1.0
    due: Mapping[str, datetime] = field(default_factory=dict)
    extensions: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    exchange: str = ""
    check_owner: bool = True
    keep_days: int = 400

    def due_for(self, lab: Lab, student: str) -> datetime | None:
        """When a student has to hand in, extension included; None if the lab has no due time."""
        due = self.due.get(short(lab))
        if due is None:
            return None
        days = self.extensions.get(short(lab), {}).get(student, 0)
        return due + timedelta(days=days)

    def days_late(self, lab: Lab, student: str, received: datetime) -> int:
        """Days begun after the due time; 0 within the grace."""
        due = self.due_for(lab, student)
        if due is None or received <= due + timedelta(minutes=self.grace_minutes):
            return 0
        return math.ceil((received - due) / timedelta(days=1))

    def penalty(self, lab: Lab, student: str, received: datetime) -> float:
        """Points that lateness costs, before the score is kept from falling below zero."""
        share = min(self.cap, self.per_day * self.days_late(lab, student, received))
        return round(share * lab.max_points, 2)

    def group_of(self, lab: Lab, student: str) -> str:
        """The name of a student's group, or the student's own."""
        for name, members in self.groups_of(lab).items():
            if student in members:
                return name
        return student

    def members(self, lab: Lab, student: str) -> tuple[str, ...]:
        """Whose submission may count for this student: the group's, or the student's own."""
        for name, members in self.groups_of(lab).items():
            if student in members:
                return tuple(dict.fromkeys((name, *members)))
        return (student,)

    def groups_of(self, lab: Lab) -> Mapping[str, tuple[str, ...]]:
        return self.groups.get(short(lab), {})


def short(lab: Lab) -> str:
    return lab.name.partition("_")[0]


def read(root: Path) -> Rules:
    """The rules of a course folder. Raises `ConfigError` that names the line to mend."""
    path = root / "course.toml"
    try:
        told = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return Rules()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", "mend it, or remove it") from None
    plain: dict[str, Any] = {}
    for table, content in told.items():
        if type(content) is not dict or table not in KNOWN | BY_LAB:
            raise ConfigError(
                f"{path}: nobody reads [{table}]", f"there are {', '.join(KNOWN | BY_LAB)}"
            )
        if table in BY_LAB:
            plain[table] = _by_lab(path, table, content)
            continue
        for key, value in content.items():
            wanted = KNOWN[table].get(key)
            if wanted is None:
                raise ConfigError(f"{path}: nobody reads {table}.{key}", ", ".join(KNOWN[table]))
            if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
                raise ConfigError(f"{path}: {table}.{key} cannot be {value!r}")
            plain[key] = value
    rules = Rules(**plain)
    are_shares = 0 <= rules.per_day <= 1 and 0 <= rules.cap <= 1
    if not (are_shares and 0 <= rules.grace_minutes <= 60 * 24 * MAX_DAYS):
        raise ConfigError(
            f"{path}: [late] wants shares between 0 and 1, and no negative or endless grace",
            "per_day = 0.10 is a tenth of the points for each day",
        )
    if not 0 <= rules.keep_days <= MAX_DAYS:
        raise ConfigError(f"{path}: keep_days are between 0 and {MAX_DAYS}")
    return rules


def _by_lab(path: Path, table: str, content: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for lab, value in content.items():
        if lab not in LABS:
            raise ConfigError(f"{path}: {table}.{lab} is no lab", f"there are {', '.join(LABS)}")
        if not isinstance(value, BY_LAB[table]):
            raise ConfigError(f"{path}: {table}.{lab} cannot be {value!r}")
        if table == "due" and value.tzinfo is None:
            value = value.replace(tzinfo=UTC)
        if table == "extensions" and any(
            type(days) not in (int, float) or not 0 <= days <= MAX_DAYS for days in value.values()
        ):
            raise ConfigError(f"{path}: extensions.{lab} are days, as in ann = 2")
        if table == "groups":
            if not all(type(m) is list and all(type(n) is str for n in m) for m in value.values()):
                raise ConfigError(f"{path}: groups.{lab} are lists of ids", 'red = ["bob", "cem"]')
            value = {name: tuple(members) for name, members in value.items()}
            everybody = [member for members in value.values() for member in members]
            if len(set(everybody)) != len(everybody):
                raise ConfigError(f"{path}: groups.{lab} has somebody in two groups")
        made[lab] = value
    return made

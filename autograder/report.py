"""Where everybody stands: one wording for the table, the CSV and the feedback page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from autograder import receipts
from autograder.course import Course
from autograder.grading import Result, results
from autograder.notebooks import printable
from autograder.scoring.base import Lab


@dataclass(frozen=True)
class Standing:
    """One student in one lab. A score that does not exist is None, never 0."""

    student: str
    last_name: str
    first_name: str
    email: str
    lab: Lab
    result: Result | None
    received: datetime | None = None
    days_late: int = 0
    automatic: float | None = None
    bonus: float = 0.0  # on top
    by_hand: float | None = None  # None until a person has read it
    corrected: tuple[str, ...] = ()  # scored cells whose score a person has changed
    penalty: float = 0.0
    total: float | None = None

    @property
    def status(self) -> str:
        return self.result["status"] if self.result else "missing"

    @property
    def notes(self) -> str:
        return "; ".join(self.result["notes"]) if self.result else ""

    @property
    def points(self) -> str:
        """In words, as in "14 of 17 automatic, 3 by hand"."""
        if self.automatic is None:
            return "no score"
        lab, hand_points = self.lab, sum(self.lab.manual.values())
        words = [f"{self.automatic:g} of {lab.auto_points:g} automatic"]
        if self.bonus:
            words.append(f"{self.bonus:g} bonus")
        if hand_points:
            read = "" if self.by_hand is None else f"{self.by_hand:g} of "
            words.append(f"{read}{hand_points:g} by hand")
        if self.corrected:
            words.append(f"{len(self.corrected)} corrected by a person")
        if self.penalty:
            days = "a day" if self.days_late == 1 else f"{self.days_late} days"
            words.append(f"{self.penalty:g} off for being {days} late")
        return ", ".join(words)


def standings(course: Course, lab: Lab) -> list[Standing]:
    """Everybody who is known, by student id."""
    told, rules = {result["student"]: result for result in results(course, lab)}, course.rules()
    made = []
    with course.gradebook() as gradebook:
        people = {student.id: student for student in gradebook.students}
        found = {s.student.id: s for s in _submissions(gradebook, lab)}
        for name in sorted(told.keys() | people.keys()):
            result, person = told.get(name), people.get(name)
            scores: dict[str, Any] = {}
            by = (result or {}).get("handed_in_by") or name
            if receipt := receipts.find(course, lab, by):
                late = rules.days_late(lab, name, receipt.time)
                scores |= {"received": receipt.time, "days_late": late}
            if result and result["score"] is not None and name in found:
                scores |= _scores(found[name], lab)
            made.append(
                Standing(
                    name,
                    (person and person.last_name) or "",
                    (person and person.first_name) or "",
                    (person and person.email) or "",
                    lab,
                    result,
                    **scores,
                )
            )
    return made


def _submissions(gradebook: Any, lab: Lab) -> list[Any]:
    known = {assignment.name for assignment in gradebook.assignments}
    return gradebook.assignment_submissions(lab.name) if lab.name in known else []


def _scores(submission: Any, lab: Lab) -> dict[str, Any]:
    grades = [grade for notebook in submission.notebooks for grade in notebook.grades]
    hand = [grade for grade in grades if grade.name in lab.manual]
    auto = [grade for grade in grades if grade.name not in lab.manual]
    is_unread = any(grade.needs_manual_grade for grade in hand)
    return {
        "automatic": sum(g.auto_score or 0.0 for g in auto if g.name not in lab.bonus),
        "bonus": sum(g.auto_score or 0.0 for g in auto if g.name in lab.bonus),
        "by_hand": None if is_unread or not hand else sum(grade.score for grade in hand),
        "corrected": tuple(grade.name for grade in auto if grade.manual_score is not None),
        "penalty": submission.late_submission_penalty,
        "total": max(0.0, submission.score - submission.late_submission_penalty),
    }


def table(course: Course, lab: Lab, names: set[str]) -> list[str]:
    """One line of a terminal for each of these students."""
    return [line(standing) for standing in standings(course, lab) if standing.student in names]


def line(standing: Standing) -> str:
    words = f"{standing.student:16} {standing.status:10} {standing.points:34} {standing.notes}"
    return printable(words.rstrip(), 200)

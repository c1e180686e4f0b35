"""One page per student, which teaches and stands alone.

Per behaviour: what was seen, which rule it breaks, where to look, and the smallest example that
the scoring names. Everything of the learner's on it is text; nothing is fetched; no hidden value,
solution or path of the instructor's is on it, because none of them is ever read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from autograder.course import Course
from autograder.notebooks import write_whole
from autograder.report import Standing, standings
from autograder.scoring.base import Lab
from minserve.errors import DataNotFound

LABEL = re.compile(r"^\s*(Seen|Rule|Look at|Example): ?(.*)$")
SHOWN = {"Seen": "What was seen", "Rule": "The rule", "Look at": "Look at", "Example": "Example"}
PRINTED_LIMIT = 2_000  # characters per cell
WORDS = {
    "graded": "Your notebook ran to its end.",
    "partly": "Some of your notebook could not be scored; the rest was.",
    "crashed": "Your notebook could not be run.",
    "timed_out": "Your notebook did not come to an end in its time.",
    "tampered": "Grading marks in your notebook were changed, or it sent what no notebook sends. "
    "A person will look at it.",
}
STYLE = """\
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #8886; }
td:last-child, th:last-child { text-align: right; white-space: nowrap; }
dl { margin: .6rem 0; padding: .4rem 1rem; border-left: 4px solid #D55E00; }
dt { font-weight: 600; } dd { margin: 0 0 .4rem; }
.kept { border-left: 4px solid #0072B2; padding: .4rem 1rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; padding: .6rem; background: #8882; }
.total { font-size: 1.2rem; font-weight: 600; }
"""


def write(course: Course, lab: Lab, only: Iterable[str] = ()) -> list[Path]:
    """Write the page of everybody who has a score; returns the paths, by student."""
    chosen = set(only)
    scored = [s for s in standings(course, lab) if s.total is not None]
    if not scored:
        raise DataNotFound(f"nobody has a score in {lab.name}", "grade first")
    if unknown := sorted(chosen - {standing.student for standing in scored}):
        raise DataNotFound(f"{unknown[0]!r} has no score in {lab.name}", "grade first")
    paths = []
    with course.gradebook() as gradebook:
        for standing in scored:
            if chosen and standing.student not in chosen:
                continue
            told = comments(gradebook, lab, standing.student)
            path = course.root / "feedback" / standing.student / lab.name / f"{lab.name}.html"
            write_whole(path, page(standing, told), 0o644)
            paths.append(path)
    return paths


def comments(gradebook: Any, lab: Lab, student: str) -> dict[str, str]:
    """What people wrote in the formgrader, by cell."""
    submission = gradebook.find_submission(lab.name, student)
    found = [comment for notebook in submission.notebooks for comment in notebook.comments]
    return {comment.name: comment.comment for comment in found if comment.comment}


def page(standing: Standing, told: dict[str, str]) -> str:
    """The page as HTML."""
    lab, result = standing.lab, standing.result
    title = f"{lab.name}: {standing.student}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="total">{standing.total:g} of {lab.max_points:g} points so far</p>'
        if standing.by_hand is None and lab.manual
        else f'<p class="total">{standing.total:g} of {lab.max_points:g} points</p>',
        f"<p>{escape(standing.points)}. {WORDS[result['status']]}</p>",
        _table(standing),
        *(f"<p>{escape(note)}.</p>" for note in result["notes"] if _is_for_learner(note)),
    ]
    titles = {cell.grade_id: cell.title for cell in lab.cells}
    for cell in result["cells"]:
        parts.append(f"<h2>{escape(titles[cell['grade_id']])}</h2>")
        findings = cell["feedback"] or []
        parts += [_finding(text) for text in findings]
        if not findings:
            parts.append('<p class="kept">Everything that is scored here holds.</p>')
        parts += _comment(told.get(cell["grade_id"]))
    for name in lab.manual:
        parts.append(f"<h2>{escape(_heading(name))} (read by a person)</h2>")
        parts += _comment(told.get(name)) or ["<p>No comment yet.</p>"]
    if printed := result["printed"]:
        parts.append("<h2>What your cells printed</h2>")
        for name, text in printed.items():
            parts.append(f"<p>{escape(name)}</p><pre>{escape(text[:PRINTED_LIMIT])}</pre>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>\n{STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + f"\n<p><small>Graded with version {escape(result['version'])} of the lab.</small></p>"
        "\n</body></html>\n"
    )


def _table(standing: Standing) -> str:
    lab, rows = standing.lab, []
    titles = {cell.grade_id: cell.title for cell in lab.cells}
    for cell in standing.result["cells"]:
        points = f"{cell['score']:g} of {cell['points']:g}"
        if cell["grade_id"] in standing.corrected:
            points += ", corrected by a person"
        rows.append((titles[cell["grade_id"]], points))
    for name, points in lab.manual.items():
        read = "by hand" if standing.by_hand is None or len(lab.manual) > 1 else None
        rows.append((_heading(name), read or f"{standing.by_hand:g} of {points:g}"))
    if standing.penalty:
        rows.append(("handed in late", f"-{standing.penalty:g}"))
    body = "".join(f"<tr><td>{escape(a)}</td><td>{escape(b)}</td></tr>" for a, b in rows)
    return f"<table><tr><th>behaviour</th><th>points</th></tr>{body}</table>"


def _heading(name: str) -> str:
    """A manual cell's id as words: lab3-explanation is "your explanation"."""
    return "your " + name.partition("-")[2].replace("-", " ")


def _is_for_learner(note: str) -> bool:
    """Notes on the notebook's own state; what is for the instructor alone stays in the CSV."""
    return not note.startswith(("tampered", "cell ")) or note.endswith(("restored", "counts"))


def _finding(text: str) -> str:
    """`Seen: ...` and its other lines as a list; what has no labels as a paragraph."""
    items, loose = [], []
    for line in text.split("\n"):
        if match := LABEL.match(line):
            items.append([SHOWN[match[1]], match[2]])
        elif items:
            items[-1][1] += "\n" + line
        else:
            loose.append(line)
    made = f"<p>{escape(' '.join(loose))}</p>" if loose else ""
    if items:
        pairs = "".join(f"<dt>{escape(a)}</dt><dd>{escape(b.strip())}</dd>" for a, b in items)
        made += f"<dl>{pairs}</dl>"
    return made


def _comment(text: str | None) -> list[str]:
    return [f"<dl><dt>Comment</dt><dd>{escape(text)}</dd></dl>"] if text else []

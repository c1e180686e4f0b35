"""The labs on a learner's own machine: a clean copy, and a check by the public tests.

The check says what a class's feedback says, in the same form: what was seen, which rule it breaks,
where to look. It runs the notebook's public tests; a class is graded with other values as well.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minserve.errors import DataNotFound
from minserve.learn.checker import _kill

PACKAGE = Path(__file__).resolve().parents[1]
PLACES = (PACKAGE.parent / "labs", PACKAGE / "_data" / "labs")
CHECK_LIMIT_S = 120.0
HEAD = re.compile(r"^(?:\d+ )?\((\d+(?:\.\d+)?) points?\): *")
_BOOTSTRAP = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from minserve.learn.lab_run import main; main(sys.argv[2])"
)


@dataclass(frozen=True, slots=True)
class LabCopy:
    """A lab as it was handed out: `path` is its notebook. `name` is full, `short` as in lab3."""

    name: str
    path: Path

    @property
    def short(self) -> str:
        """The name that commands take."""
        return self.name.partition("_")[0]

    @property
    def title(self) -> str:
        """The notebook's heading."""
        cells = _read(self.path)["cells"]
        return _source(cells[0]).splitlines()[0].lstrip("# ")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One public test: `rule` is the behaviour it states, `seen` is empty if it holds.

    `is_to_do` if it would hold, but its answer is still the one that the lab came with.
    """

    grade_id: str
    points: float
    rule: str
    seen: str = ""
    look: str = ""
    printed: str = ""
    is_to_do: bool = False

    @property
    def holds(self) -> bool:
        """Whether the public test passed."""
        return not self.seen

    @property
    def is_bonus(self) -> bool:
        """Whether its points come on top of the lab's."""
        return "-bonus" in self.grade_id

    def lines(self) -> list[str]:
        """The outcome in words, labelled as in a class's feedback."""
        if self.holds:
            return ["Everything that is checked here holds."]
        return [f"Seen: {self.seen}.", f"Rule: {self.rule}.", f"Look at: {self.look}."]


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check found; `by_hand` are points that only a person can give.

    `is_untouched` if no answer in code differs from the one that the lab came with.
    """

    outcomes: tuple[Outcome, ...]
    by_hand: float
    notes: tuple[str, ...] = ()
    is_untouched: bool = False

    @property
    def points(self) -> str:
        """As a class's feedback says it: "14 of 17 automatic, 3 by hand"."""
        scored = [outcome for outcome in self.outcomes if not outcome.is_bonus]
        held = sum(outcome.points for outcome in scored if outcome.holds)
        bonus = sum(outcome.points for outcome in self.outcomes if outcome.holds) - held
        words = [f"{held:g} of {sum(outcome.points for outcome in scored):g} automatic"]
        words += [f"{bonus:g} bonus"] if bonus else []
        words += [f"{self.by_hand:g} by hand"] if self.by_hand else []
        return ", ".join(words)

    @property
    def holds(self) -> bool:
        """Whether all public tests passed."""
        return all(outcome.holds for outcome in self.outcomes)


def labs() -> list[LabCopy]:
    """The labs that are here, by name."""
    found: dict[str, LabCopy] = {}
    for place in PLACES:
        for path in sorted(place.glob("*/*.ipynb")):
            if path.stem == path.parent.name:
                found.setdefault(path.stem, LabCopy(path.stem, path))
    return [found[name] for name in sorted(found)]


def find(name: str) -> LabCopy:
    """A lab by its short or full name. Raises `DataNotFound` that names those there are."""
    here = labs()
    for lab in here:
        if name in (lab.short, lab.name):
            return lab
    if name.endswith(".ipynb"):
        known = next((lab.short for lab in here if lab.name == Path(name).stem), "LAB")
        hint = f"say which lab it is, then which notebook: `minserve check {known} {name}`"
        raise DataNotFound(f"{name!r} is a notebook, and no lab", hint)
    names = ", ".join(lab.short for lab in here)
    raise DataNotFound(f"no lab is called {name!r}", f"the labs here: {names or 'none'}")


def start(lab: LabCopy, to: Path) -> Path:
    """Put a clean copy of the lab's notebook into a folder; never over an existing one."""
    target = to / lab.path.name
    if target.exists():
        raise DataNotFound(
            f"{target} exists already, with your work",
            "give another folder with --to, or move it away to begin anew",
        )
    to.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(lab.path, target)
    return target


def check(lab: LabCopy, notebook: Path, limit_s: float = CHECK_LIMIT_S) -> Checked:
    """Run a learner's notebook through the lab's public tests, in a process of its own.

    The tests, and whatever else is locked, are the lab's own; answers and further cells are the
    notebook's. `limit_s` bounds the whole run. Raises `DataNotFound` if it is no such notebook.
    """
    given, theirs = _read(lab.path)["cells"], _read(notebook)["cells"]
    answers = {_grade_id(cell): cell for cell in theirs if _grade_id(cell)}
    if not set(answers) & {_grade_id(cell) for cell in given if _grade_id(cell)}:
        raise DataNotFound(
            f"{notebook} is not a notebook of {lab.name}",
            f"`minserve lab start {lab.short}` gives one; copy your answers into it",
        )
    everything = _cells(given, theirs, answers, with_own=True)
    notes, told = [], _run(everything, limit_s)
    stuck = _stuck(told)
    if stuck.startswith("own-"):
        notes.append(f"a cell of your own {_end_of(told)}; checked without your own cells")
        told = _run(_cells(given, theirs, answers, with_own=False), limit_s)
    asked = {_grade_id(c): c for c in given if _marks(c).get("solution") and _code(c)}
    touched = {
        name
        for name, cell in asked.items()
        if _source(answers.get(name, cell)).split() != _source(cell).split()
    }
    outcomes = [
        _until_answered(_outcome(cell, told, list(asked)), list(asked), touched)
        for cell in given
        if _marks(cell).get("grade") and _code(cell)
    ]
    by_hand = sum(
        _marks(cell).get("points", 0)
        for cell in given
        if _marks(cell).get("grade") and not _code(cell)
    )
    return Checked(tuple(outcomes), by_hand, tuple(notes), not touched)


def _cells(
    given: list[Any], theirs: list[Any], answers: dict[str, Any], with_own: bool
) -> list[tuple[str, str]]:
    """(name, source) of the code to run: the lab's cells with the learner's answers and own."""
    known = {_grade_id(cell) for cell in given if _grade_id(cell)}
    texts = {_source(cell) for cell in given}
    own: dict[str, list[tuple[str, str]]] = {"": []}
    place = ""
    for number, cell in enumerate(theirs):
        if _grade_id(cell) in known:
            place = _grade_id(cell)
            own.setdefault(place, [])
        elif with_own and _code(cell) and _source(cell) not in texts:
            own[place].append((f"own-{number}", _source(cell)))
    made = list(own[""])
    for cell in given:
        name = _grade_id(cell)
        if _code(cell):
            is_answer = _marks(cell).get("solution") and name in answers
            made.append(
                (name or cell.get("id", "cell"), _source(answers[name] if is_answer else cell))
            )
        made += own.get(name, []) if name else []
    return made


def _run(cells: list[tuple[str, str]], limit_s: float) -> dict[str, Any]:
    """name -> what the cell printed and raised; "" -> why the process ended early, if it did."""
    with tempfile.TemporaryDirectory(prefix="minserve-lab-") as folder:
        job = Path(folder) / "job.json"
        job.write_text(json.dumps(cells), "utf-8")
        process = subprocess.Popen(
            [sys.executable, "-I", "-X", "utf8", "-c", _BOOTSTRAP, str(PACKAGE.parent), str(job)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={**os.environ, "MPLBACKEND": "Agg"},
            start_new_session=True,
        )
        why = "ended the process"
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            why = f"was still running after {limit_s:g} s"
        finally:
            _kill(process)
        told: dict[str, Any] = {}
        path = Path(folder) / "told.jsonl"
        for line in path.read_text("utf-8").splitlines() if path.exists() else []:
            if not line.endswith("}"):
                break
            message = json.loads(line)
            if "starts" in message:
                told[""] = (message["starts"], why)
            else:
                told[message["ends"]] = message
                del told[""]
        return told


def _stuck(told: dict[str, Any]) -> str:
    return told[""][0] if "" in told else ""


def _end_of(told: dict[str, Any]) -> str:
    return told[""][1]


def _outcome(cell: Any, told: dict[str, Any], asked: list[str]) -> Outcome:
    name, rule = _grade_id(cell), _rule(cell)
    points = float(_marks(cell)["points"])
    if name not in told:
        stuck = _stuck(told)
        seen = f"cell {stuck} {_end_of(told)}" if stuck else "the check itself ended early"
        return Outcome(name, points, rule, seen, f"cell {stuck or name}")
    error, printed = told[name]["error"], told[name]["printed"].strip()
    if error is None:
        return Outcome(name, points, rule, printed=printed)
    broken = [
        f"cell {answer} stopped: {_words(told[answer]['error'])}"
        for answer in asked
        if told.get(answer, {}).get("error")
    ]
    seen = "; ".join([*broken, _words(error)])
    return Outcome(name, points, rule, seen, _place(error, name), printed)


def _until_answered(outcome: Outcome, asked: list[str], touched: set[str]) -> Outcome:
    """The outcome; what holds by answers that the lab came with is still to do."""
    answer = outcome.grade_id.removesuffix("-check")
    needed = [answer] if answer in asked else asked
    if not outcome.holds or touched.intersection(needed):
        return outcome
    seen = "this is still as the lab came: it runs, and earns nothing yet"
    look = f"cell {needed[0]}, line 1"
    return replace(outcome, seen=seen, look=look, printed="", is_to_do=True)


def _words(error: dict[str, Any]) -> str:
    kind, message = error["kind"], error["message"].rstrip(".")
    if kind == "AssertionError":
        return message or "a public test fails"
    return f"{kind}: {message}" if message else kind


def _place(error: dict[str, Any], name: str) -> str:
    """The deepest line of the learner's, else the line of the test."""
    places = error["places"] or [[name, 1, ""]]
    theirs = [place for place in places if place[0] != name]
    cell, line, text = (theirs or places)[-1]
    return f"cell {cell}, line {line}" + (f": {text}" if text else "")


def _rule(cell: Any) -> str:
    """The comment at the head of a test, without its number and points."""
    lines = []
    for line in _source(cell).splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return HEAD.sub("", " ".join(lines)).strip().rstrip(".") or _grade_id(cell)


def _read(path: Path) -> dict[str, Any]:
    try:
        notebook = json.loads(path.read_text("utf-8"))
        for cell in notebook["cells"]:
            _source(cell), _marks(cell), _code(cell)
        return notebook
    except OSError as error:
        raise DataNotFound(f"cannot read {path}: {error.strerror}", "check the path") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataNotFound(
            f"{path} is no readable notebook ({type(error).__name__})",
            "open it in JupyterLab and save it again",
        ) from None


def _source(cell: Any) -> str:
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def _marks(cell: Any) -> dict[str, Any]:
    marks = cell.get("metadata", {}).get("nbgrader")
    return marks if isinstance(marks, dict) else {}


def _grade_id(cell: Any) -> str:
    name = _marks(cell).get("grade_id")
    return name if isinstance(name, str) else ""


def _code(cell: Any) -> bool:
    return cell["cell_type"] == "code"

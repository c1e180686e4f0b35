"""The hostile submissions that are the same for every lab, after the table of what stock nbgrader
grades wrongly: whatever a notebook does, an honest score and a plain status.

Where the answer is right, the mischief beside it must neither cost nor earn a point; where it is
the untouched one, no trick may earn any. What ends or stalls the process loses what did not run,
and the report says why.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from autograder.bank import mischief
from autograder.bank.base import Bank, Notebook, Submission, append, as_file, cell, set_source
from autograder.notebooks import REPOSITORY

Vector = tuple[float, ...]


@dataclass(frozen=True)
class Hostile:
    """Makes them for a lab whose main answer is a class.

    `method` is one that every scored cell of the class calls, `graded` the id of such a cell,
    `test` the learner's regression test. `broken` is the vector of a right test beside a class
    that cannot be scored, `untested` that of a right class beside a test that fails always,
    `always_equal` that of a right class whose `method` returns objects that equal everything.
    `public` is an expression over `args`, what the class is made with: true in the public tests,
    and never in a hidden scenario. `references` are (module, name) that a learner might import.
    """

    bank: Bank
    class_name: str
    method: str
    graded: str
    explanation: str
    test: str
    full: Vector
    broken: Vector
    untested: Vector
    always_equal: Vector
    public: str
    references: tuple[tuple[str, str], ...]

    @property
    def none(self) -> Vector:
        return (0.0,) * len(self.full)

    def right_with(self, code: str) -> Notebook:
        """The solution, and code at the end of its cell."""
        return append(self.bank.solved(), self.bank.answers[0], self._named(code))

    def untouched_with(self, code: str) -> Notebook:
        return append(self.bank.released(), self.bank.answers[0], self._named(code))

    def in_method(self, code: str) -> Notebook:
        """The solution, with a line of mischief whenever `method` is called."""
        return self.right_with(mischief.IN_METHOD.replace("CODE", code))

    def own_cell(self, code: str) -> Notebook:
        """The solution beside an experiment of the learner's own."""
        return self.bank.own_cell(self.bank.solved(), code)

    def rows(self) -> list[Submission]:
        return [
            *self._points(),
            *self._endings(),
            *self._files(),
            *self._tricks(),
            *self._copied(),
            *self._surroundings(),
        ]

    def _named(self, code: str) -> str:
        return code.replace("CLASS", self.class_name).replace("METHOD", self.method)

    # -- points that nobody computed

    def _points(self) -> list[Submission]:
        row, full, none = self.bank.row, self.full, self.none
        last = "float(100)"
        return [
            row(
                "hostile: noise on stderr, warnings and logs",
                lambda: append(
                    self.in_method("print('noise', file=__import__('sys').stderr)"),
                    self.bank.answers[0],
                    "import logging, warnings\nwarnings.warn('torch says so')\nlogging.error('no')",
                ),
                full,
                through_nbgrader=True,
            ),
            row(
                "hostile: forged last expression",
                lambda: append(self.untouched_with(last), self.graded, last),
                none,
                through_nbgrader=True,
            ),
            row(
                "hostile: printed and displayed points",
                lambda: append(self.bank.released(), self.graded, "print(3.0)\nFalse"),
                none,
                through_nbgrader=True,
            ),
            row(
                "hostile: partial credit above the maximum",
                lambda: append(self.bank.solved(), self.graded, "1e9"),
                full,
                through_nbgrader=True,
            ),
            row(
                "hostile: more points in the metadata",
                self._more_points,
                none,
                status="tampered",
                through_nbgrader=True,
            ),
            *(
                row(
                    f"hostile: {name}",
                    lambda code=code: self.untouched_with(code),
                    none,
                    status="tampered",
                )
                for name, code in mischief.LINES.items()
            ),
        ]

    def _more_points(self) -> Notebook:
        notebook = self.bank.released()
        cell(notebook, self.graded)["metadata"]["nbgrader"]["points"] = 100
        return notebook

    # -- code that ends, stalls or floods its process

    def _endings(self) -> list[Submission]:
        row, full, none, broken = self.bank.row, self.full, self.none, self.broken
        alone = "answer cells alone"
        return [
            row(
                "hostile: infinite loop when loaded",
                lambda: self.right_with("while True: pass"),
                none,
                status="timed_out",
                contains="processor time",
                through_nbgrader=True,
            ),
            row(
                "hostile: infinite loop in an experiment",
                lambda: self.own_cell("while True: pass"),
                full,
                contains=alone,
            ),
            row(
                "hostile: infinite loop in a method",
                lambda: self.in_method("while True: pass"),
                broken,
                status="partly",
                contains="processor time",
            ),
            row(
                "hostile: a loop that ignores signals",
                lambda: self.untouched_with(mischief.IGNORES_SIGNALS),
                none,
                status="timed_out",
            ),
            row(
                "hostile: os._exit",
                lambda: self.right_with("import os\nos._exit(0)"),
                none,
                status="crashed",
                through_nbgrader=True,
            ),
            row(
                "hostile: os._exit in an experiment",
                lambda: self.own_cell("import os\nos._exit(0)"),
                full,
                contains=alone,
            ),
            row(
                "hostile: kills itself in a method",
                lambda: self.in_method("__import__('os').kill(__import__('os').getpid(), 9)"),
                broken,
                status="partly",
                contains="ended the process",
                through_nbgrader=True,
            ),
            row("hostile: kills its parent", lambda: self.right_with(mischief.KILLS_PARENT), full),
            row(
                "hostile: out of memory",
                lambda: self.in_method("bytearray(10**12)"),
                broken,
                contains="MemoryError",
            ),
            row(
                "hostile: out of memory in an experiment",
                lambda: self.own_cell(mischief.MEMORY),
                full,
            ),
            row(
                "hostile: sys.exit in a method",
                lambda: self.in_method("raise SystemExit(0)"),
                broken,
            ),
            row(
                "hostile: leaves a process running",
                lambda: self.own_cell(mischief.BACKGROUND),
                full,
                through_nbgrader=True,
            ),
            row("hostile: forks without end", lambda: self.own_cell(mischief.FORKS), full),
            row("hostile: huge output", self._huge_output, full, through_nbgrader=True),
        ]

    def _huge_output(self) -> Notebook:
        notebook = self.own_cell("print('x' * 50_000_000)\nimport os\nos.write(1, b'y' * 10**7)")
        text = [{"output_type": "stream", "name": "stdout", "text": "z" * 4_000_000}]
        cell(notebook, self.graded)["outputs"] = text
        return notebook

    # -- files and cells that are not as they were given

    def _files(self) -> list[Submission]:
        row, bank, main = self.bank.row, self.bank, self.bank.answers[0]
        name = bank.notebook_name
        bad = {"expected": None, "status": "unreadable"}
        return [
            row(
                "hostile: a copied cell",
                self._copied_cell,
                self.full,
                contains="more than once",
                through_nbgrader=True,
            ),
            row("hostile: stripped metadata", self._stripped, contains="grading marks", **bad),
            Submission(
                "hostile: corrupt JSON",
                lambda: {name: as_file(bank.solved, name)()[name][:-200]},
                contains="no readable notebook",
                **bad,
            ),
            Submission("hostile: no text at all", lambda: {name: b"\xff\xfe\x00"}, **bad),
            Submission("hostile: JSON, but no notebook", lambda: {name: b"[1, 2]"}, **bad),
            Submission("hostile: deeply nested JSON", lambda: {name: b"[" * 10**6}, **bad),
            Submission(
                "hostile: renamed file",
                as_file(bank.solved, "final_v2.ipynb"),
                None,
                "missing",
                contains="rename",
            ),
            Submission("hostile: nothing handed in", dict, None, "missing"),
            row(
                "hostile: deleted test cell",
                lambda: self._without(self.graded),
                self.full,
                contains="deleted",
                through_nbgrader=True,
            ),
            row(
                "hostile: deleted main answer cell",
                lambda: self._without(main),
                self.broken,
                status="crashed",
                contains="deleted",
                through_nbgrader=True,
            ),
            Submission(
                "hostile: the notebook is a link to the solution",
                lambda: {name: f"{REPOSITORY}/solutions/{bank.lab}/{name}"},
                contains="symbolic link",
                **bad,
            ),
            Submission(
                "hostile: a link beside the notebook",
                lambda: as_file(bank.solved, name)() | {"secret.txt": "/etc/passwd"},
                self.full,
                through_nbgrader=True,
            ),
            Submission(
                "hostile: modules that shadow the grader's",
                lambda: (
                    as_file(bank.released, name)()
                    | dict.fromkeys(mischief.SHADOWS, b"raise SystemExit")
                ),
                self.none,
                through_nbgrader=True,
            ),
            row(
                "hostile: a foreign kernel",
                lambda: bank.solved() | {"metadata": {"kernelspec": mischief.EVIL}},
                self.full,
                through_nbgrader=True,
            ),
        ]

    def _copied_cell(self) -> Notebook:
        notebook = self.bank.solved()
        for name in (self.bank.answers[0], self.graded):
            copy = json.loads(json.dumps(cell(notebook, name))) | {"id": f"{name}-copy"}
            notebook["cells"].append(copy)
        return notebook

    def _stripped(self) -> Notebook:
        notebook = self.bank.solved()
        for each in notebook["cells"]:
            each["metadata"] = {}
        return notebook

    def _without(self, name: str) -> Notebook:
        notebook = self.bank.solved()
        notebook["cells"].remove(cell(notebook, name))
        return notebook

    # -- objects and patches that are to fool a comparison

    def _tricks(self) -> list[Submission]:
        row, untouched = self.bank.row, self.untouched_with
        return [
            row(
                "hostile: always-equal object", lambda: untouched(mischief.ALWAYS_EQUAL), self.none
            ),
            row(
                "hostile: always-equal answers from a right class",
                lambda: self.right_with(mischief.ALWAYS_EQUAL),
                self.always_equal,
            ),
            *(
                row(
                    f"hostile: {name} in place of every answer",
                    lambda value=value: self.right_with(
                        mischief.ALWAYS_EQUAL.replace("Always(1)", value)
                    ),
                    self.always_equal,
                )
                for name, value in mischief.NUMBERS.items()
            ),
            row(
                "hostile: patched builtins and json",
                lambda: untouched(mischief.PATCHED),
                self.none,
                status="tampered",
            ),
            row(
                "hostile: transformer and import hooks",
                lambda: self.right_with(mischief.HOOK),
                self.full,
            ),
            row(
                "hostile: hooks beside the untouched class",
                lambda: untouched(mischief.HOOK),
                self.none,
            ),
            row(
                "hostile: a class that does nothing", lambda: untouched(mischief.NOTHING), self.none
            ),
            row(
                "hostile: a test that counts its calls",
                lambda: self._with_test(mischief.COUNTING.replace("TEST", self.test)),
                self.untested,
            ),
            row(
                "hostile: a test that fails always",
                lambda: self._with_test(f"def {self.test}(make):\n    assert False"),
                self.untested,
                contains="correct implementation",
            ),
        ]

    def _with_test(self, source: str) -> Notebook:
        return set_source(self.bank.solved(), self.bank.answers[1], source)

    # -- somebody else's work

    def _copied(self) -> list[Submission]:
        row, bank, main = self.bank.row, self.bank, self.bank.answers[0]
        return [
            row(
                "hostile: reads the solution by its path",
                lambda: self.untouched_with(
                    mischief.READ_SOLUTION.replace("LAB", bank.lab).replace("CELL", main)
                ),
                self.none,
                through_nbgrader=True,
            ),
            row(
                "hostile: looks for the grader in its process",
                lambda: self.untouched_with(
                    mischief.GRADER.replace("SCORING", bank.lab.partition("_")[0])
                ),
                self.none,
            ),
            row("hostile: a memorised public scenario", self._memorised, self.none),
            *(
                row(
                    f"hostile: imports the reference {module}",
                    lambda module=module, name=name: bank.solved(
                        f"from {module} import {name} as {self.class_name}"
                    ),
                    self.broken,
                    status="crashed",
                    contains="stopped: ",
                )
                for module, name in self.references
            ),
            *(
                row(
                    f"hostile: another student's variant {variant}",
                    lambda variant=variant: bank.released(variant),
                    self.none,
                )
                for variant in "bc"
            ),
        ]

    def _memorised(self) -> Notebook:
        """Right where the public tests look, and untouched elsewhere."""
        faulty = "".join(cell(self.bank.released(), self.bank.answers[0])["source"])
        chosen = mischief.MEMORISED.replace("PUBLIC", self.public)
        source = f"{self.bank.solution(self.bank.answers[0])}\nRight = CLASS\n{faulty}\n{chosen}"
        return set_source(self.bank.released(), self.bank.answers[0], self._named(source))

    # -- what reaches other people's pages

    def _surroundings(self) -> list[Submission]:
        return [
            self.bank.row(
                "hostile: script in text and output",
                self._printed_script,
                self.full,
                through_nbgrader=True,
            ),
        ]

    def _printed_script(self) -> Notebook:
        script = "<script>alert('minserve')</script>"
        notebook = self.own_cell(f"print({script!r})")
        text = f"My answer {script} <img src=x onerror=alert(1)>\n\n{mischief.LINKS}"
        set_source(notebook, self.explanation, text)
        output = {"output_type": "display_data", "metadata": {}, "data": {"text/html": script}}
        cell(notebook, self.graded)["outputs"] = [output]
        return notebook

"""Steps of ours in nbgrader's pipelines. `Course.config` says where each one stands."""

from __future__ import annotations

import nbformat
from nbconvert.preprocessors.sanitize import SanitizeHTML
from nbgrader.preprocessors import ClearSolutions, NbGraderPreprocessor
from traitlets import Bool, Unicode

from autograder import grading, intake, planting, scoring
from autograder.course import Course


class FaultPlanter(ClearSolutions):
    """Plants a variant's faults; cells without faults are cleared as nbgrader does."""

    variant = Unicode("a", help="the planted variant").tag(config=True)

    def preprocess_cell(self, cell, resources, index):
        if not planting.has_faults(cell.source):
            return super().preprocess_cell(cell, resources, index)
        cell.source = planting.plant(cell.source, self.variant)
        return cell, resources


class Transplant(NbGraderPreprocessor):
    """Puts what the learner may write into the released notebook; see `intake.transplant`."""

    def preprocess(self, notebook, resources):
        lab = scoring.find(resources["nbgrader"]["assignment"])
        return intake.transplant(notebook, lab), resources


class WriteScores(NbGraderPreprocessor):
    """Scores the notebook outside of any kernel and writes points and words into its cells."""

    course = Unicode("", help="the course folder").tag(config=True)

    def preprocess(self, notebook, resources):
        course = Course.open(self.course)
        lab = scoring.find(resources["nbgrader"]["assignment"])
        result = grading.score_submission(course, lab, resources["nbgrader"]["student"], notebook)
        told = {cell["grade_id"]: cell for cell in result["cells"]}
        for cell in notebook.cells:
            name = cell.get("metadata", {}).get("nbgrader", {}).get("grade_id", "")
            if name in told:
                cell.outputs = outputs(told[name])
            elif cell.cell_type == "code" and result["printed"].get(name or cell.get("id")):
                text = result["printed"][name or cell.get("id")]
                cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)]
        return notebook, resources


def outputs(cell: dict) -> list[nbformat.NotebookNode]:
    """What a graded cell shows: the words, then the points as nbgrader reads them."""
    words = cell["feedback"] or ["Everything that is scored here holds."]
    score = min(max(float(cell["score"]), 0.0), float(cell["points"]))
    return [
        nbformat.v4.new_output("stream", name="stdout", text="\n\n".join(words) + "\n"),
        nbformat.v4.new_output(
            "execute_result", data={"text/plain": repr(score)}, execution_count=1
        ),
    ]


class Clean(SanitizeHTML):
    """No scripts from a learner's text or output on an instructor's or learner's page."""

    enabled = Bool(True)  # nbconvert's own default is off, which nobody would notice

    def preprocess_cell(self, cell, resources, index):
        marks = cell.metadata.get("nbgrader", {})
        if marks.get("locked") and not marks.get("solution"):
            return cell, resources  # ours, and its checksum must stay
        return super().preprocess_cell(cell, resources, index)


class Plain(NbGraderPreprocessor):
    """What a learner wrote in Markdown is shown as it was typed.

    NOTE: a link or a formula in it (`[x](javascript:...)`, `\\href`) would run in the session of
    whoever marks it, and a picture would tell its server who does: none of that is HTML to `Clean`.
    """

    def preprocess(self, notebook, resources):
        lab = scoring.find(resources["nbgrader"]["assignment"])
        given = {cell.source for cell in intake.template(lab).cells}
        for cell in notebook.cells:
            if cell.cell_type != "code" and cell.source not in given:
                cell.source = as_typed(cell.source)
        return notebook, resources


def as_typed(text: str) -> str:
    """Markdown that looks like `text`, whatever stands there."""
    shown = (c if c.isalnum() or c in " \n" else f"&#{ord(c)};" for c in text)
    return f'<pre style="white-space: pre-wrap">{"".join(shown)}</pre>'


class Redact(NbGraderPreprocessor):
    """Feedback shows what happened, never a traceback: an error is its name and message."""

    def preprocess_cell(self, cell, resources, index):
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                output.traceback = [f"{output.ename}: {output.evalue}"]
        return cell, resources

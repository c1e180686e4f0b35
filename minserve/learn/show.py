"""How findings look: plain text everywhere, and a tidy box of HTML in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from minserve.learn.conformance import (
    BROKEN,
    CRASHED,
    KEPT,
    NOT_YET,
    STOPPED,
    WAITING,
    Suite,
    Verdict,
)

if TYPE_CHECKING:
    from minserve.learn.parts import Report

# Okabe and Ito's palette; every colour comes with a sign and a word of its own.
GREEN, ORANGE, GREY = "#009E73", "#D55E00", "#767676"
SIGNS = {KEPT: "✓", BROKEN: "✗", CRASHED: "✗", STOPPED: "✗", NOT_YET: "○", WAITING: "·"}
WRONG = (BROKEN, CRASHED, STOPPED)


class Show:
    """`show(report, suite)` shows a report; `show.table` rows under a heading."""

    def __call__(self, report: Report, suite: Suite) -> None:
        """Show a report in a notebook, or print it."""
        display(as_text(report, suite), as_html(report, suite))

    def table(self, heading: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Show a table in a notebook, or print it; whole numbers get thousands separators."""
        display(table_text(heading, rows), table_html(heading, rows))


show = Show()


def display(text: str, html: str) -> None:
    """Both forms to a notebook, which picks one; only the text elsewhere."""
    try:
        from IPython import get_ipython
        from IPython.display import display as show_in_notebook
    except ImportError:
        get_ipython = None
    if get_ipython is None or get_ipython() is None or not hasattr(get_ipython(), "kernel"):
        print(text)
    else:
        show_in_notebook({"text/plain": text, "text/html": html}, raw=True)


def headline(report: Report) -> tuple[str, str]:
    """One line that says how things stand, and its colour."""
    states = [v.state for v in report.verdicts]
    kept = states.count(KEPT)
    if report.problems:
        return "not checked: the cell does not stand on its own", ORANGE
    if report.is_green:
        return f"green: all {kept} rules are kept", GREEN
    if any(state in WRONG for state in states):
        wrong = sum(state in WRONG for state in states)
        return f"{kept} rules kept, {wrong} broken", ORANGE
    if kept:
        step = next(v.step for v in report.verdicts if v.state == NOT_YET)
        return f"{kept} rules kept so far; next: {step}", GREY
    return "not yet: there is nothing to check so far", GREY


def _steps(report: Report, suite: Suite) -> list[tuple[str, str, str]]:
    """Of each step: its name, sign, and state in words."""
    result = []
    for step in suite.steps:
        verdicts = [v for v in report.verdicts if v.step == step]
        total = sum(rule.step == step for rule in suite.rules)
        kept = sum(v.state == KEPT for v in verdicts)
        wrong = sum(v.state in WRONG for v in verdicts)
        if wrong:
            result.append((step, SIGNS[BROKEN], f"{wrong} of {total} rules broken"))
        elif any(v.state == NOT_YET for v in verdicts):
            result.append((step, SIGNS[NOT_YET], "not yet"))
        elif kept == total:
            result.append(
                (step, SIGNS[KEPT], f"all {total} rules kept" if total > 1 else "its rule kept")
            )
        else:
            result.append((step, SIGNS[WAITING], "waits"))
    return result


def _to_tell(report: Report) -> list[Verdict]:
    """What went wrong; one error that breaks many rules is told once."""
    told, result = set(), []
    for verdict in report.verdicts:
        cause = (verdict.what, verdict.line)
        if verdict.state in WRONG and not (verdict.state == CRASHED and cause in told):
            result.append(verdict)
        told.add(cause)
    return result


def _details(verdict: Verdict) -> list[str]:
    lines = [verdict.what]
    if verdict.line:
        lines[0] += f"   (line {verdict.line}: {verdict.code})" if verdict.code else ""
    return lines


def as_text(report: Report, suite: Suite) -> str:
    """The report in plain text."""
    lines = [f"{report.part}: {headline(report)[0]}"]
    lines += [f"  {problem}" for problem in report.problems]
    if len(suite.steps) > 1 and report.verdicts:
        lines += [f"  {sign} {step:10} {state}" for step, sign, state in _steps(report, suite)]
    for verdict in _to_tell(report):
        lines += ["", f"{SIGNS[verdict.state]} {verdict.invariant}" if verdict.invariant else ""]
        lines += [f"    {line}" for line in verdict.example]
        lines += [f"  {line}" for line in _details(verdict)]
        if verdict.hint:
            lines.append(f"  Hint: {verdict.hint}")
    if report.printed:
        lines += ["", "Your code printed:", *(f"  {line}" for line in report.printed)]
    if report.notes:
        lines += ["", *report.notes]
    if not report.is_green and not report.problems:
        lines += ["", f"Stuck?  {_next_hint(report, suite)}"]
    return "\n".join(lines)


def _next_hint(report: Report, suite: Suite) -> str:
    step = next((v.step for v in report.verdicts if v.state != KEPT and v.step), suite.steps[0])
    where = f', step="{step}"' if len(suite.steps) > 1 else ""
    return f'hint("{report.part}"{where})'


def as_html(report: Report, suite: Suite) -> str:
    """The report as a box; colours only repeat what signs and words say."""
    text, colour = headline(report)
    body = [f"<b>{escape(report.part)}</b>: {escape(text)}"]
    if report.problems:
        body.append(_list(report.problems))
    if len(suite.steps) > 1 and report.verdicts:
        items = "".join(
            f'<span style="margin-right:1.5em">{sign} <b>{escape(step)}</b> {escape(state)}</span>'
            for step, sign, state in _steps(report, suite)
        )
        body.append(f'<div style="margin-top:.3em">{items}</div>')
    body += map(_verdict_html, _to_tell(report))
    if report.printed:
        body.append("Your code printed:" + _pre(report.printed))
    body += [f'<div style="margin-top:.3em">{escape(note)}</div>' for note in report.notes]
    if not report.is_green and not report.problems:
        call = escape(_next_hint(report, suite))
        body.append(f'<div style="margin-top:.5em">Stuck? <code>{call}</code></div>')
    return (
        f'<div role="status" style="border-left:5px solid {colour};padding:.4em .9em;'
        f'margin:.2em 0">{"".join(body)}</div>'
    )


def _verdict_html(verdict: Verdict) -> str:
    parts = []
    if verdict.invariant:
        parts.append(
            f'<span style="color:{ORANGE}">{SIGNS[verdict.state]}</span> '
            f"<b>{escape(verdict.invariant)}</b>"
        )
    if verdict.example:
        parts.append(_pre(verdict.example))
    parts.append("<br>".join(escape(line) for line in _details(verdict)))
    if verdict.hint:
        parts.append(f'<div style="margin-top:.2em"><i>Hint:</i> {escape(verdict.hint)}</div>')
    return f'<div style="margin-top:.7em">{"".join(parts)}</div>'


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _pre(lines: Sequence[str]) -> str:
    text = escape("\n".join(lines))
    return f'<pre style="margin:.3em 0;padding:.3em .6em;border:1px solid {GREY}55">{text}</pre>'


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def table_text(heading: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in plain text."""
    cells = [list(map(_cell, row)) for row in (heading, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heading))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in cells]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def table_html(heading: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in HTML; the first column heads its row, figures align to the right."""

    def cell(tag: str, value: object, scope: str = "") -> str:
        text = _cell(value)
        is_figure = text[:1].isdigit() and not any(c.isalpha() for c in text)
        align = "right" if is_figure else "left"
        return f'<{tag}{scope} style="text-align:{align}">{escape(text)}</{tag}>'

    head = "".join(cell("th", text, ' scope="col"') for text in heading)
    body = "".join(
        "<tr>"
        + cell("th", row[0], ' scope="row"')
        + "".join(cell("td", value) for value in row[1:])
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

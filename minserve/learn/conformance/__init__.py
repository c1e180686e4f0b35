"""Conformance suites: what a part must keep to, in words, each rule with its counterexample.

One suite serves four times: it tests the reference, answers the learner at once, backs the lab's
public tests, and runs over wrong variants that it must reject. A suite looks for counterexamples
from the smallest upwards, so what it shows is the smallest there is in its range, and always the
same one.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any


class BrokenRule(Exception):
    """A counterexample: `what` happened, in words, and the `example` lines that lead there."""

    def __init__(self, what: str, example: Sequence[str] = ()) -> None:
        super().__init__(what)
        self.what = what
        self.example = tuple(example)


class showing:
    """`with showing(lines)`: whatever a candidate raises carries the lines that lead there."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            error.minserve_example = tuple(self.lines)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that must hold. `check(candidate)` raises `BrokenRule` where it does not.

    `step` is the method or part of the work that the rule belongs to; `invariant` says in words
    what must hold, `hint` where to look when it does not.
    """

    name: str
    step: str
    invariant: str
    hint: str
    check: Callable[[Any], None]


class Rules(list[Rule]):
    """A suite's rules in their order, added one by one as functions that check them."""

    def add(self, step: str, invariant: str, hint: str) -> Callable[[Callable], Callable]:
        """Add the decorated check; its name becomes the rule's."""

        def adding(check: Callable[[Any], None]) -> Callable[[Any], None]:
            self.append(Rule(check.__name__.lstrip("_"), step, invariant, hint, check))
            return check

        return adding


@dataclass(frozen=True, slots=True)
class Ladder:
    """Help with one step, each rung telling more: a drawing, pseudocode, a near miss (a diff)."""

    drawing: str
    pseudocode: str
    near_miss: str


@dataclass(frozen=True, slots=True)
class Suite:
    """All rules of a part, in the order in which its `steps` are written."""

    part: str
    steps: tuple[str, ...]
    rules: tuple[Rule, ...]
    ladders: dict[str, Ladder] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one rule. `state` is one of the constants below; plain data throughout."""

    step: str
    rule: str
    invariant: str
    state: str
    what: str = ""
    example: tuple[str, ...] = ()
    hint: str = ""
    line: int = 0
    code: str = ""


KEPT, BROKEN, CRASHED, NOT_YET, WAITING, STOPPED = (
    "kept",
    "broken",
    "crashed",
    "not yet",
    "waiting",
    "stopped",
)

CRASH_HINT = "Mend this error first: whether the rule holds could not be seen."


def suite_of(part: str) -> Suite:
    """The suite of a part; each lives in the module of its name."""
    return import_module(f"{__name__}.{part}").SUITE


def examine(
    suite: Suite,
    candidate: Any,
    source_file: str = "",
    on_rule: Callable[[Rule], object] = lambda rule: None,
) -> list[Verdict]:
    """Try every rule on `candidate`. Steps behind one that is not in order only wait for it.

    A fault that breaks several rules of a step in the same words is told once; the rest wait.
    `source_file` is the file name under which the candidate was compiled: an exception is shown at
    its line there. `on_rule` is told of each rule before it is tried.
    """
    verdicts: list[Verdict] = []
    told: set[str] = set()
    in_order = True
    for step in suite.steps:
        rules = [rule for rule in suite.rules if rule.step == step]
        if not in_order:
            verdicts += [Verdict(step, rule.name, rule.invariant, WAITING) for rule in rules]
            continue
        for rule in rules:
            on_rule(rule)
            verdict = _try(rule, candidate, source_file)
            if verdict.what and verdict.what in told:
                verdict = Verdict(step, rule.name, rule.invariant, WAITING)
            told.add(verdict.what)
            verdicts.append(verdict)
            if verdict.state == NOT_YET:
                break
        in_order = all(v.state == KEPT for v in verdicts)
    return verdicts


def _try(rule: Rule, candidate: Any, source_file: str) -> Verdict:
    def verdict(state: str, what: str = "", example: Sequence[str] = (), line: int = 0) -> Verdict:
        code = linecache.getline(source_file, line).strip() if line else ""
        hint = rule.hint if state == BROKEN else CRASH_HINT if state == CRASHED else ""
        return Verdict(
            rule.step, rule.name, rule.invariant, state, what, tuple(example), hint, line, code
        )

    try:
        rule.check(candidate)
    except BrokenRule as broken:
        return verdict(BROKEN, broken.what, broken.example)
    except NotImplementedError as error:
        return verdict(NOT_YET, line=line_in(error, source_file))
    except Exception as error:  # whatever a learner's code raises, it is shown and not passed on
        example = getattr(error, "minserve_example", ())
        what = _say(error)
        return verdict(CRASHED, what, example, line_in(error, source_file))
    return verdict(KEPT)


def returned(value: Any) -> str:
    """What a function gave back, in words: None is nearly always a missing `return`."""
    return "None: is a `return` missing?" if value is None else repr(value)


def _say(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def line_in(error: BaseException, source_file: str) -> int:
    """The innermost line of `source_file` that the traceback passes through; 0 if there is none."""
    line, step = 0, error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == source_file:
            line = step.tb_lineno
        step = step.tb_next
    return line

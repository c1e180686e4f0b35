"""Parts: the places in the engine that a learner fills, checked at once, kept when right.

In a notebook cell, below the code:

    part("block_pool", BlockPool)

checks the code in a fresh process, shows each broken rule with its smallest counterexample, and
keeps it in the workspace when no rule is broken. With `mine=True` the engine runs it from then on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from minserve.errors import ConfigError, MinserveError
from minserve.learn.checker import check_source, load
from minserve.learn.conformance import (
    BROKEN,
    CRASHED,
    KEPT,
    NOT_YET,
    STOPPED,
    Ladder,
    Suite,
    Verdict,
    suite_of,
)
from minserve.learn.show import show
from minserve.learn.source import Source, borrowed, source_of
from minserve.learn.workspace import MINE, REFERENCE, Workspace


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for a part: what it is, where its Protocol and its reference live.

    `protocol` and `reference` are `module:name`; a function's protocol is its reference's
    signature. `limit_s` is how long a check may take before it is stopped.
    """

    name: str
    lesson: int
    about: str
    reference: str
    protocol: str
    limit_s: float = 5.0
    needs_torch: bool = False
    is_stretch: bool = False

    @property
    def suite(self) -> Suite:
        return suite_of(self.name)

    def load_reference(self) -> Any:
        """The reference implementation."""
        module, name = self.reference.split(":")
        return getattr(import_module(module), name)


def _function(name: str, lesson: int, about: str, module: str, **options: Any) -> Slot:
    """A slot for a plain function, of which `module` has the reference."""
    return Slot(name, lesson, about, module + name, module + name, **options)


_REFERENCE = "minserve.learn.reference:"
_POLICIES = "minserve.learn.policies:"
_ENGINE = "minserve.learn.parts_of_engine:"
_LOAD = "minserve.learn.parts_of_load:"
_ADMISSIONS = "minserve.learn.admissions:"
_PREFIX = "minserve.learn.prefix:"
_REUSE = "minserve.learn.parts_of_reuse:"
SLOTS: dict[str, Slot] = {
    slot.name: slot
    for slot in (
        _function("decode_loop", 1, "reads a prompt and writes an answer, token by token", _ENGINE),
        _function("request_measures", 1, "timestamps to TTFT, ITL, TPOT and end to end", _LOAD),
        _function(
            "roofline", 1, "whether arithmetic or memory sets the pace", _REFERENCE, is_stretch=True
        ),
        _function("static_batching", 2, "a batch starts together and ends together", _POLICIES),
        _function("dynamic_batching", 2, "a batch waits a little for company", _POLICIES),
        _function("continuous_batching", 2, "who runs is decided anew at each step", _POLICIES),
        _function("engine_step", 2, "one step: plan, launch, collect, commit", _ENGINE),
        _function("ordering", 2, "whose turn is next", _ENGINE, is_stretch=True),
        Slot(
            "kv_bytes_per_token",
            3,
            "bytes of KV cache per token, from a model's config",
            _REFERENCE + "kv_bytes_per_token",
            _REFERENCE + "kv_bytes_per_token",
        ),
        Slot(
            "block_pool",
            3,
            "who holds which block: allocate, append, share, release",
            "minserve.kv.blocks:BlockPool",
            "minserve.learn.pool:BlockPoolPart",
        ),
        Slot(
            "paged_attention",
            3,
            "attention that reads keys and values through a block table",
            _REFERENCE + "paged_attention",
            _REFERENCE + "paged_attention",
            limit_s=20.0,
            needs_torch=True,
        ),
        Slot(
            "preemption",
            3,
            "whom to preempt when blocks run out",
            _REFERENCE + "make_room",
            _REFERENCE + "make_room",
            is_stretch=True,
        ),
        _function("block_hashes", 4, "chained keys of full blocks", _PREFIX),
        Slot(
            "prefix_cache",
            4,
            "which blocks hold what, and which to give up: match, register, evict",
            _PREFIX + "LeafFirstCache",
            _PREFIX + "PrefixCachePart",
        ),
        _function("cache_salt", 4, "who may share a prefix, from server-side identity", _PREFIX),
        _function("cache_key", 5, "names the answer to a request, safely", _REUSE),
        Slot(
            "response_cache",
            5,
            "keeps answers while they are right: get, put, invalidate",
            _REUSE + "TaggedCache",
            _REUSE + "ResponseCachePart",
        ),
        _function("semantic_gate", 5, "whether another question's answer will do", _REUSE),
        _function("open_loop", 6, "a sender that a stalled server cannot deceive", _LOAD),
        Slot(
            "admission",
            6,
            "who is let in, and when the others may return",
            _ADMISSIONS + "AdmissionByTokens",
            _ADMISSIONS + "AdmissionAnswers",
        ),
        Slot(
            "job_lease",
            6,
            "claim, renew, complete and fail a job, under a fencing token",
            "minserve.learn.leases:JobLease",
            "minserve.learn.leases:JobLeasePart",
        ),
        Slot(
            "overload_ladder",
            6,
            "what is given up under load: up at once, down slowly",
            _ADMISSIONS + "OverloadLadder",
            _ADMISSIONS + "LadderAnswers",
            is_stretch=True,
        ),
    )
}

# The objects that kept all rules in this process, with their source: a breakpoint set in the
# learner's cell is hit only if the engine runs that very object, and not a copy of it.
_live: dict[str, tuple[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class Report:
    """What `part` found. `is_green` if no rule is broken and none is left open."""

    part: str
    verdicts: tuple[Verdict, ...] = ()
    problems: tuple[str, ...] = ()
    printed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_green(self) -> bool:
        return (
            bool(self.verdicts)
            and not self.problems
            and all(v.state == KEPT for v in self.verdicts)
        )

    def _ipython_display_(self) -> None:
        """Shown already by `part`: as the last value of a cell it is not shown again."""


def part(name: str, target: Any, *, mine: bool = False) -> Report:
    """Check `target` as the part `name`, show what is right and what is not, and keep it if green.

    `mine=True` also has the engine run it from now on; without it, what the engine runs is left
    as it was. Never raises for a fault in the learner's code; `ConfigError` for an unknown part.
    """
    slot = slot_of(name)
    report = _check(slot, target)
    show(report, slot.suite)
    if mine and report.is_green:
        _set_use(name, MINE)
    return report


def get(name: str, mine: bool | None = None) -> Any:
    """What stands in a slot: the learner's part or the reference.

    `mine=True` asks for the learner's, `False` for the reference, None for what `use` has set. If
    the learner's is not ready, the reference stands in, and one line says so.
    """
    slot = slot_of(name)
    workspace = Workspace(name)
    wants_mine = workspace.use == MINE if mine is None else mine
    if not wants_mine:
        return slot.load_reference()
    version = workspace.current()
    live = _live.get(name)
    if live and (version is None or live[0] == version.text):
        return live[1]
    if version is None:
        print(f"{name}: yours is not ready yet, so the reference runs.")
        return slot.load_reference()
    try:
        return load(version.name, version.text, str(version.path))
    except Exception as error:  # a kept version that no longer runs must not stop the lesson
        print(f"{name}: version {version.number} does not load ({error}), so the reference runs.")
        return slot.load_reference()


def use(name: str, which: str) -> None:
    """Have the engine run `mine` or the `reference` for part `name`, until changed again."""
    slot_of(name)
    if which not in (MINE, REFERENCE):
        raise ConfigError(f"{which!r} is neither", f"say {MINE!r} or {REFERENCE!r}")
    if which == MINE and Workspace(name).current() is None:
        print(f"{name}: yours is not ready yet, so the reference stays.")
        return
    _set_use(name, which)
    print(f"{name}: the engine now runs {'yours' if which == MINE else 'the reference'}.")


def restore(name: str, number: int) -> None:
    """Make version `number` of a part the current one, and print it. Raises `ConfigError`."""
    slot_of(name)
    version = Workspace(name).restore(number)
    _live.pop(name, None)
    print(f"{name}: version {number} is current again.\n\n{version.text}")


def parts_status(lesson: int | None = None) -> None:
    """Show which parts are checked, how many versions are kept, and what the engine runs."""
    rows = []
    for slot in SLOTS.values():
        if lesson not in (None, slot.lesson):
            continue
        workspace = Workspace(slot.name)
        versions, current = workspace.versions(), workspace.current()
        state = f"green, version {current.number} of {len(versions)}" if current else NOT_YET
        runs = "yours" if workspace.use == MINE and current else "the reference"
        name = slot.name + (" (stretch)" if slot.is_stretch else "")
        rows.append((name, state, runs, slot.about))
    show.table(("part", "yours", "the engine runs", "what it does"), rows)


def hint(name: str, rung: int = 1, step: str | None = None) -> None:
    """Help with a part, one rung of the ladder at a time.

    1 what must hold, 2 a drawing, 3 pseudocode, 4 a near miss and its mending, 5 the reference.
    A part with several steps shows the first, or the `step` asked for.
    """
    slot = slot_of(name)
    suite = slot.suite
    step = step or suite.steps[0]
    if step not in suite.steps:
        raise ConfigError(f"{name} has no step {step!r}", f"its steps are {list(suite.steps)}")
    if not 1 <= rung <= 5:
        raise ConfigError(f"the ladder has no rung {rung}", "rungs are 1 to 5")
    ladder = suite.ladders[step]
    titles = ("what must hold", "a drawing", "pseudocode", "a near miss, mended", "the reference")
    lines = [f"{name}, {step}: {titles[rung - 1]}", "", _rung(slot, ladder, rung, step)]
    where = f', step="{step}"' if len(suite.steps) > 1 else ""
    if rung < 5:
        lines += ["", f'Still stuck?  hint("{name}", {rung + 1}{where})']
    others = [other for other in suite.steps if other != step]
    if others and rung == 1:
        lines.append(f"Other steps: {', '.join(f'step={other!r}' for other in others)}")
    print("\n".join(lines))


def slot_of(name: str) -> Slot:
    """The slot of that name. Raises `ConfigError`."""
    if name not in SLOTS:
        raise ConfigError(f"there is no part {name!r}", f"parts are {', '.join(SLOTS)}")
    return SLOTS[name]


def _check(slot: Slot, target: Any) -> Report:
    try:
        source = source_of(target)
        problems = borrowed(source, target)
    except MinserveError as error:
        return Report(slot.name, problems=(f"{error}: {error.hint}",))
    if problems:
        return Report(slot.name, problems=tuple(problems))
    found = check_source(slot.name, source.name, source.text, slot.limit_s, slot.needs_torch)
    report = Report(slot.name, found.verdicts, printed=found.printed)
    if report.is_green:
        notes = (_keep(slot, source, target),)
    elif current := Workspace(slot.name).current():
        notes = (f"Until this is green, your version {current.number} stays what it was.",)
    else:
        return report
    return replace(report, notes=notes)


def _keep(slot: Slot, source: Source, target: Any) -> str:
    _live[slot.name] = (source.compact, target)
    try:
        version = Workspace(slot.name).keep(source.name, source.compact)
    except OSError as error:
        return f"It could not be kept ({error}): it works until this kernel stops."
    return f"Kept in your workspace as version {version.number}."


def _set_use(name: str, which: str) -> None:
    try:
        Workspace(name).use = which
    except OSError as error:
        print(f"{name}: the choice could not be kept ({error}).")


def _rung(slot: Slot, ladder: Ladder, rung: int, step: str) -> str:
    if rung == 1:
        rules = [rule for rule in slot.suite.rules if rule.step == step]
        return "\n".join(f"- {rule.invariant}" for rule in rules)
    if rung == 5:
        return _reference_source(slot, step)
    return (ladder.drawing, ladder.pseudocode, ladder.near_miss)[rung - 2]


def _reference_source(slot: Slot, step: str) -> str:
    import inspect
    import textwrap

    reference = slot.load_reference()
    member = getattr(reference, step, reference) if isinstance(reference, type) else reference
    text = textwrap.dedent(inspect.getsource(member))
    if member is not reference:  # with what it calls of its own
        for name, helper in vars(reference).items():
            if name not in slot.suite.steps and f"self.{name}(" in text:
                text += "\n" + textwrap.dedent(inspect.getsource(helper))
    return f"# {slot.reference.replace(':', '.')}\n{text}"


__all__ = [
    "BROKEN",
    "CRASHED",
    "STOPPED",
    "Report",
    "SLOTS",
    "Slot",
    "get",
    "hint",
    "part",
    "parts_status",
    "restore",
    "slot_of",
    "use",
]

"""The source of a part: its definition, and what that needs, cut out of the cell it was written in.

Only what the definition uses is kept: imports, helpers and constants of the same cell. A name that
lives in another cell would be missing after a restart, so it is reported.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import symtable
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from minserve.errors import MinserveError


class SourceUnavailable(MinserveError):
    """The part's source cannot be found or does not stand alone."""


@dataclass(frozen=True, slots=True)
class Source:
    """A part's source. `text` keeps every line at its number in the cell; others are blank."""

    name: str
    text: str

    @property
    def compact(self) -> str:
        """The text as it is kept: without the blank lines of what was left out."""
        lines = self.text.splitlines()
        result: list[str] = []
        for line in lines:
            if line.strip() or (result and result[-1].strip()):
                result.append(line.rstrip())
        return "\n".join(result).strip() + "\n"


def source_of(target: Any) -> Source:
    """The source of a function or class that was defined at the top of a cell or file.

    Raises `SourceUnavailable`, in words for a learner, if it cannot be read.
    """
    function = _a_function_of(target)
    lines = linecache.getlines(function.__code__.co_filename)
    name = target.__name__
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        tree = ast.Module([], [])
    wanted = [node for node in tree.body if name in _binds(node)]
    if not wanted:
        raise SourceUnavailable(
            f"the source of {name} cannot be found",
            "define it at the left margin of an ordinary cell, without %% on the first line",
        )
    kept = _closure(tree.body, wanted[-1])
    numbers = {n for node in kept for n in range(_first_line(node), (node.end_lineno or 0) + 1)}
    text = "".join(
        line if n in numbers else "\n" for n, line in enumerate(lines, start=1) if n <= max(numbers)
    )
    return Source(name, text)


def borrowed(source: Source, target: Any) -> list[str]:
    """One line per name that the source uses and does not define: which one, and what to do."""
    table = symtable.symtable(source.text, "cell", "exec")
    own = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
    own |= {child.get_name() for child in table.get_children()}
    known = own | set(dir(builtins)) | {"__name__", "__file__", "__doc__", "__annotations__"}
    elsewhere = _a_function_of(target).__globals__
    lines = source.text.splitlines()
    found = []
    for name in dict.fromkeys(_globals_used(table)):
        if name in known:
            continue
        number = next((n for n, line in enumerate(lines, 1) if _mentions(line, name)), 0)
        where = f"line {number}: " if number else ""
        if name not in elsewhere:
            found.append(f"{where}the name `{name}` is not defined anywhere: a slip of the pen?")
        elif statement := _import_of(name, elsewhere[name]):
            found.append(
                f"{where}`{name}` comes from another cell: move this import here:  {statement}"
            )
        else:
            found.append(f"{where}`{name}` comes from another cell: move its definition here")
    return found


def _a_function_of(target: Any) -> FunctionType:
    if isinstance(target, FunctionType):
        return target
    if isinstance(target, type):
        for member in vars(target).values():
            member = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
            member = getattr(member, "__wrapped__", member)
            if isinstance(member, FunctionType) and member.__module__ == target.__module__:
                return member
        raise SourceUnavailable(
            f"class {target.__name__} has no method of its own", "write its methods first"
        )
    raise SourceUnavailable(
        f"a part is a function or a class; this is {type(target).__name__} {target!r:.60}",
        'hand over the name itself: part("block_pool", BlockPool)',
    )


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])


def _binds(node: ast.stmt) -> set[str]:
    """The names that a top-level statement of a kind that is kept defines."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(a.asname or a.name).split(".")[0] for a in node.names}
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and _is_stored(n)}
    if isinstance(node, (ast.If, ast.Try, ast.With, ast.For)):
        return {name for child in node.body for name in _binds(child)}
    return set()


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _closure(body: list[ast.stmt], target: ast.stmt) -> list[ast.stmt]:
    kept: list[ast.stmt] = [
        n for n in body if isinstance(n, ast.ImportFrom) and n.module == "__future__"
    ]
    kept += [n for n in body if isinstance(n, ast.ImportFrom) and n.names[0].name == "*"]
    todo = [target]
    while todo:
        node = todo.pop()
        if node in kept:
            continue
        kept.append(node)
        used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        todo += [n for n in body if n is not node and _binds(n) & used]
    return kept


def _globals_used(table: symtable.SymbolTable) -> Iterator[str]:
    for symbol in table.get_symbols():
        is_global = symbol.is_global() or table.get_type() == "module"
        if symbol.is_referenced() and is_global and not symbol.is_assigned():
            yield symbol.get_name()
    for child in table.get_children():
        yield from _globals_used(child)


def _mentions(line: str, name: str) -> bool:
    code = line.split("#")[0]
    try:
        return any(
            isinstance(n, ast.Name) and n.id == name
            for n in ast.walk(ast.parse(code.strip().removesuffix(":") or "0"))
        )
    except SyntaxError:
        return name in code


def _import_of(name: str, value: Any) -> str:
    """The import statement that would give `value` the name `name`; empty if none can."""
    if isinstance(value, ModuleType):
        if value.__name__ == name:
            return f"import {name}"
        return f"import {value.__name__} as {name}"
    module, original = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not module or module == "__main__" or not isinstance(original, str):
        return ""
    if original == name:
        if getattr(sys.modules.get("minserve.learn"), name, None) is value:
            module = "minserve.learn"  # how the lessons write it
        return f"from {module} import {name}"
    return f"from {module} import {original} as {name}"

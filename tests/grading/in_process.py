"""Labs scored in this process, for trusted code: quick enough for many hidden seeds."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import matplotlib

from autograder import planting
from autograder.child import from_wire, plain
from autograder.harness import Raised, RemoteError
from autograder.scoring.base import Lab, Open


class Channel:
    """Answers what a child would ask, at once."""

    def __init__(self, serve: Callable[..., Any]) -> None:
        self.serve = serve

    def send(self, message: dict[str, Any]) -> None:
        try:
            told = self.serve(message["ask"], message["method"], message["args"])
            self.answer = {"return": json.loads(json.dumps(told))}
        except RemoteError as error:
            self.answer = {"raise": error.kind, "message": str(error)}

    def receive(self) -> dict[str, Any]:
        return self.answer


class Local:
    """A session whose child is this process."""

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self.namespace, self.names = namespace, set(namespace)

    def new(self, class_name: str, args: list[Any], serve: Callable[..., Any]) -> None:
        self.subject = self._run(self.namespace[class_name], args, serve)

    def call(self, method: str, args: list[Any], serve: Callable[..., Any]) -> Any:
        told = self._run(getattr(self.subject, method), args, serve)
        return json.loads(json.dumps(plain(told)))

    def test(self, function: str, args: list[Any], serve: Callable[..., Any]) -> None:
        self._run(self.namespace[function], args, serve)

    def _run(self, function: Callable[..., Any], args: list[Any], serve: Callable[..., Any]) -> Any:
        try:
            return function(*from_wire(Channel(serve), json.loads(json.dumps(args))))
        except Exception as error:
            raise Raised(type(error).__name__, str(error), "here") from None


def opener(lab: Lab, notebook: dict[str, Any]) -> Open:
    """What opens a session with a notebook's setup and answers."""
    wanted = (*lab.setup, *lab.solutions)
    cells = {each["id"]: "".join(each["source"]) for each in notebook["cells"]}

    def open_local() -> contextlib.AbstractContextManager[Local]:
        namespace: dict[str, Any] = {"__name__": __name__}
        for name in wanted:
            exec(compile(cells[name], f"<{name}>", "exec"), namespace)
        return contextlib.nullcontext(Local(namespace))

    return open_local


def vector(lab: Lab, notebook: dict[str, Any], seed: bytes) -> tuple[float, ...]:
    return tuple(cell.score for cell in lab.score(opener(lab, notebook), seed))


def run_public(notebook: dict[str, Any]) -> dict[str, Exception]:
    """Run a notebook's code cells in order; {cell: error} of those that raise."""
    matplotlib.use("Agg")
    namespace: dict[str, Any] = {"__name__": __name__}
    errors = {}
    for each in notebook["cells"]:
        if each["cell_type"] == "code":
            try:
                exec("".join(each["source"]), namespace)
            except Exception as error:
                errors[each["id"]] = error
    return errors


def single_faults(source: str) -> dict[str, str]:
    """name -> a solution with one planted fault alone, for every fault of every variant."""
    lines = source.split("\n")
    places = [n for n, line in enumerate(lines) if "### BEGIN FAULT" in line]
    made = {}
    for chosen in places:
        others = {n: lines[n].rpartition("FAULT")[0] + "FAULT none" for n in places if n != chosen}
        variant = lines[chosen].split()[-1]
        one = "\n".join(others.get(n, line) for n, line in enumerate(lines))
        made[f"{variant}, line {chosen + 1}"] = planting.plant(one, variant)
    return made

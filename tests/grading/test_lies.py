"""Whatever a child answers or asks, the grader ends with a score: it never raises itself."""

import contextlib
import json
import random
from importlib import import_module

import pytest
from grading.in_process import Local

from autograder import bank, scoring
from autograder.harness import ChildError, RemoteError

DEEP: list = []
for _ in range(900):
    DEEP = [DEEP]
JUNK = [
    *(None, True, 0, -1, 2, 10**12, 10**400, 1.0, 1e308, float("nan"), float("inf")),
    *("", "a", "\ud800", "job-1", [], [[]], {}, {"a": 1}, [None], ["a", 1, []], {"token": True}),
    DEEP,
]


class Broke(BaseException):
    """The grader raised where it should have judged."""


class Lying(Local):
    """The right answer, some of whose words are replaced on their way to the grader."""

    def __init__(self, namespace, rng):
        super().__init__(namespace)
        self.rng, self.share = rng, rng.choice((0.01, 0.1, 0.3))

    def bent(self, value):
        value = json.loads(json.dumps(value))
        if self.rng.random() > self.share:
            return value
        root = [value]
        place, key = root, 0
        while isinstance(inner := place[key], list | dict) and inner and self.rng.random() < 0.8:
            place = inner
            key = self.rng.choice(list(inner) if type(inner) is dict else range(len(inner)))
        place[key] = self.rng.choice([*JUNK, self.rng.choices(JUNK, k=6)])
        return root[0]

    def call(self, method, args, serve):
        return self.bent(super().call(method, args, serve))

    def _run(self, function, args, serve):
        def lie(name, method, args):
            args = self.bent(args)
            try:
                return serve(name, method, args if type(args) is list else [args])
            except (RemoteError, ChildError):
                raise
            except Exception as error:
                raise Broke(f"{name}.{method}") from error

        return super()._run(function, args, lie)


@pytest.mark.parametrize("lab", scoring.LABS.values(), ids=list(scoring.LABS))
def test_no_lie_makes_the_grader_itself_raise(lab):
    solved = import_module(f"autograder.bank.{bank.folder_of(lab.name)}").solved()
    cells = {each["id"]: "".join(each["source"]) for each in solved["cells"]}
    namespace = {"__name__": __name__}
    for name in (*lab.setup, *lab.solutions):
        exec(compile(cells[name], f"<{name}>", "exec"), namespace)
    scores = set()
    for seed in range(12):
        rng = random.Random(seed)

        def open_lying(rng=rng):
            return contextlib.nullcontext(Lying(namespace, rng))

        told = lab.score(open_lying, str(seed).encode())
        scores.add(tuple(cell.score for cell in told))
        assert all(0 <= cell.score <= cell.points for cell in told)
    assert len(scores) > 1, "the lies were seen"

"""A learner's regression test meets implementations in the grader's process: bounded, and in an
order that no test can know."""

import contextlib
import random

import pytest

from autograder import scoring
from autograder.harness import ChildMisbehaved, Raised, RemoteError
from autograder.scoring import lab1, lab2, lab4, regression
from autograder.scoring.base import CellScore

INTERFACE = regression.Interface(
    {"name": "make", "methods": {"__call__": ["size"]}, "properties": [], "emptied": {}},
    lambda subject, size=1: {"box": subject(size)},
    {"box": {"put": ["value"]}},
    {},
)


class Box:
    def __init__(self, size):
        self.left = 0 + size

    def put(self, value):
        self.left -= 1


def asked(name, method, args, interface=INTERFACE, subject=Box):
    host = regression.Host(subject, interface)
    host.serve("make", "__call__", [])
    return host.serve(name, method, args)


@pytest.mark.parametrize(
    "name", ["box 1", "box " + "9" * 5000, "box -1", "box", "", "shelf 0", "box ٣"]
)
def test_what_was_never_made_cannot_be_asked(name):
    with pytest.raises(ChildMisbehaved):
        asked(name, "put", [1])


@pytest.mark.parametrize("args", [[], [1, 2, 3], [[1] * 5_000], [{"a": [{}] * 5_000}]])
@pytest.mark.parametrize("call", [("box 0", "put"), ("make", "__call__")])
def test_arguments_that_make_no_sense_are_the_tests_own_error(args, call):
    if (args, call[0]) == ([], "make"):
        args = ["no number"]
    with pytest.raises(RemoteError):
        asked(*call, args)


def test_the_arguments_of_a_whole_test_are_bounded():
    host = regression.Host(Box, INTERFACE)
    host.serve("make", "__call__", [])
    with pytest.raises(RemoteError, match="50000 in all"):
        for _ in range(20):
            host.serve("box 0", "put", [[0] * 4_900])


def test_deeply_nested_arguments_are_counted():
    deep = []
    for _ in range(50_000):
        deep = [deep]
    assert regression.num_values(deep) == 50_001


def test_no_report_of_a_test_makes_the_grader_count_to_a_billion():
    """One other right way counts each token, and the solution keeps a time for each."""
    record = {"chunks": [{"time_s": 0.0, "num_tokens": 10**9, "text": ""}]}
    for _, subject in lab1.subjects.SUBJECTS.right:
        with pytest.raises(RemoteError, match="tokens"):
            lab1.subjects.make_report(subject, [record], 1.0, 1.0)
    asked_for = lab4.subjects.INTERFACE.max_values
    assert asked_for <= 1_000, "some caches keep or compare all tokens before each block"


@pytest.mark.parametrize("lab", [lab2, lab4, scoring.lab6, scoring.capstone])
def test_a_maker_given_too_much_raises_in_the_test(lab):
    subjects = lab.subjects
    host = regression.Host(subjects.SUBJECTS.right[0][1], subjects.INTERFACE)
    with pytest.raises(RemoteError):
        host.serve(subjects.MAKE["name"], "__call__", [1, 2, 3, 4, 5])


class Counting:
    """A test that knows how many came before it, and fails from the fifth on."""

    def __init__(self):
        self.count = 0

    def test(self, function, args, serve):
        self.count += 1
        if self.count > 4:
            raise Raised("AssertionError", "", "here")


def score(seed, session):
    scored = CellScore("cell", 3.0)
    right = [(f"right {n}", Box) for n in range(4)]
    faulty = {f"fault {n}": (Box, "is wrong") for n in range(3)}
    regression.score_test(
        scored,
        lambda: contextlib.nullcontext(session),
        random.Random(seed),
        "test",
        INTERFACE,
        right,
        faulty,
    )
    return scored.settle().score


def test_knowing_the_how_manyth_it_is_earns_a_test_nothing():
    """4 right ones and 3 faulty twice: one order in 210 has the right ones first."""
    scores = [score(seed, Counting()) for seed in range(200)]
    assert scores.count(3.0) < 5 and scores.count(0.0) > 150
    assert score(1, Counting()) == score(1, Counting()), "the same at a regrade"


class Dicing:
    """A test that fails one time in five, whatever it meets."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def test(self, function, args, serve):
        if self.rng.random() < 0.2:
            raise Raised("AssertionError", "", "here")


def test_a_test_that_fails_now_and_then_catches_next_to_nothing():
    """0.25 of 3 points if each were met once; this is the best that chance can do."""
    scores = [score(seed, Dicing(seed)) for seed in range(1000)]
    assert sum(scores) / len(scores) < 0.1

"""The rules of `request_measures(intended_s, chunks)`: what timestamps say, and what not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minserve.learn.conformance import BrokenRule, Ladder, Rule, Suite, showing
from minserve.learn.parts_of_load import RequestMeasures

Measure = Callable[[float, Sequence[tuple[float, int]]], RequestMeasures]
Chunks = list[tuple[float, int]]


class _Tried:
    """One call, and what came of it."""

    def __init__(self, measure: Measure, intended_s: float, chunks: Chunks) -> None:
        self.example = [f"chunks = {chunks}", f"request_measures({intended_s:g}, chunks)"]
        given = list(chunks)
        with showing(self.example):
            self.found = measure(intended_s, given)
        self.example[-1] += f"   # -> {self.found}"
        if not isinstance(self.found, RequestMeasures):
            self.fail(f"a RequestMeasures is wanted; this is {self.found!r}")
        if given != chunks:
            self.fail("the list `chunks` belongs to the caller, and was changed")

    def fail(self, what: str) -> None:
        raise BrokenRule(what, self.example)

    def expect(self, name: str, right: object, because: str) -> None:
        value = getattr(self.found, name)
        if not _is_close(value, right):
            self.fail(f"{because}: {name} is {_said(right)}, not {_said(value)}")


def _is_close(value: object, right: object) -> bool:
    if isinstance(right, list):
        if not isinstance(value, list) or len(value) != len(right):
            return False
        return all(map(_is_close, value, right))
    if not isinstance(right, int | float) or not isinstance(value, int | float):
        return value is right
    return abs(value - right) < 1e-9


def _said(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_said(item) for item in value) + "]"
    return f"{value:g}" if isinstance(value, int | float) else repr(value)


def _from_the_intended_time(measure: Measure) -> None:
    for intended_s in (0.0, 1.0):
        t = _Tried(measure, intended_s, [(3.0, 1), (4.0, 1)])
        t.expect("ttft_s", 3.0 - intended_s, f"it was meant to go at {intended_s:g}")
        t.expect("e2e_s", 4.0 - intended_s, f"it was meant to go at {intended_s:g}")


def _role_is_no_token(measure: Measure) -> None:
    t = _Tried(measure, 0.0, [(1.0, 0), (3.0, 1), (4.0, 1)])
    t.expect("ttft_s", 3.0, "the first chunk bears no token")
    t.expect("itl_s", [1.0], "the first chunk bears no token")


def _usage_is_no_token(measure: Measure) -> None:
    t = _Tried(measure, 0.0, [(3.0, 1), (4.0, 1), (9.0, 0)])
    t.expect("e2e_s", 4.0, "the last chunk is the usage: it bears no token")
    t.expect("tpot_s", 1.0, "the last chunk is the usage: it bears no token")


def _n_tokens_have_n_minus_one_gaps(measure: Measure) -> None:
    t = _Tried(measure, 0.0, [(3.0, 1), (4.0, 1), (6.0, 1)])
    t.expect("itl_s", [1.0, 2.0], "three tokens have two gaps, and the wait for the first is none")


def _chunk_of_k_counts_k(measure: Measure) -> None:
    t = _Tried(measure, 0.0, [(3.0, 1), (5.0, 2)])
    t.expect("itl_s", [1.0, 1.0], "two tokens came together after 2 s")
    t = _Tried(measure, 0.0, [(3.0, 2), (5.0, 1)])
    t.expect("itl_s", [0.0, 2.0], "two tokens came together, at first")


def _tpot_is_per_token_after_the_first(measure: Measure) -> None:
    t = _Tried(measure, 0.0, [(3.0, 1), (5.0, 2), (6.0, 1)])
    t.expect("tpot_s", 1.0, "3 s passed for the three tokens after the first")


def _one_token_has_no_tpot(measure: Measure) -> None:
    t = _Tried(measure, 0.0, [(3.0, 1)])
    t.expect("tpot_s", None, "one token has no pace")
    t.expect("itl_s", [], "one token has no gap")
    t.expect("ttft_s", 3.0, "its first token came all the same")


def _no_token_has_no_latency(measure: Measure) -> None:
    for chunks in ([], [(1.0, 0)]):
        t = _Tried(measure, 0.0, chunks)
        for name, right in (("ttft_s", None), ("itl_s", []), ("tpot_s", None), ("e2e_s", None)):
            t.expect(name, right, "no token ever came")


_STEP = "request_measures"
RULES = (
    Rule(
        "from_the_intended_time",
        _STEP,
        "Latencies count from the time at which the request was meant to go.",
        "Subtract intended_s, from the first token for TTFT and from the last for end to end.",
        _from_the_intended_time,
    ),
    Rule(
        "role_is_no_token",
        _STEP,
        "A chunk without a token is not the first token.",
        "Leave out chunks that bear 0 tokens before you look at the first.",
        _role_is_no_token,
    ),
    Rule(
        "usage_is_no_token",
        _STEP,
        "A chunk without a token, such as the usage, does not extend the latency.",
        "Leave out chunks that bear 0 tokens before you look at the last.",
        _usage_is_no_token,
    ),
    Rule(
        "n_tokens_have_n_minus_one_gaps",
        _STEP,
        "N tokens have N - 1 gaps, and the time to the first token is none of them.",
        "Go over neighbours: the first gap is between the first and the second token.",
        _n_tokens_have_n_minus_one_gaps,
    ),
    Rule(
        "chunk_of_k_counts_k",
        _STEP,
        "A chunk of k tokens is k gaps of a k-th each; beside the first token they are 0.",
        "Divide the gap by the chunk's tokens and list it so many times.",
        _chunk_of_k_counts_k,
    ),
    Rule(
        "tpot_is_per_token_after_the_first",
        _STEP,
        "Time per output token is (last - first) / (N - 1), with N the number of tokens.",
        "Count tokens, not chunks.",
        _tpot_is_per_token_after_the_first,
    ),
    Rule(
        "one_token_has_no_tpot",
        _STEP,
        "An answer of one token has a time to first token and no pace: None, not 0.",
        "Zero would make it the fastest answer of all.",
        _one_token_has_no_tpot,
    ),
    Rule(
        "no_token_has_no_latency",
        _STEP,
        "An answer without any token has no latency at all.",
        "Check for an empty list before you take its first element.",
        _no_token_has_no_latency,
    ),
)

SUITE = Suite(
    "request_measures",
    (_STEP,),
    RULES,
    {
        _STEP: Ladder(
            drawing="""\
meant to go    role     token     2 tokens          token    usage
    |           |         |          |                |        |
    '------ TTFT ---------'-- 2 gaps-'----- 1 gap ----'
    '---------------- end to end ---------------------'        not a token""",
            pseudocode="""\
keep the chunks with tokens; if there are none: all None, no gaps
gaps: 0 for each further token of the first chunk
      for each later chunk of k tokens: (its time - the one before) / k, k times
TPOT: (last - first) / number of gaps, if there is a gap""",
            near_miss="""\
- ttft_s = chunks[0][0] - intended_s          # the role came first
+ ttft_s = with_tokens[0][0] - intended_s""",
        )
    },
)

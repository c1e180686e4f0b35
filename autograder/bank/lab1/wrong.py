"""Lab 1's wrong and partial fixes: each one an edit of the solution, with its score."""

from __future__ import annotations

from autograder.bank.lab1 import (
    BANK,
    FIRST,
    LAST,
    edited,
    row,
    solved_but,
)
from autograder.scoring.lab1.subjects import AVERAGED, POOLED

COUNT = 'sum(chunk["num_tokens"] for chunk in record["chunks"])'
ANSWERS = 'answers = [r for r in records if r["outcome"] == "ok"]'
TRIED = 'outcomes["ok"] + outcomes["error"] + outcomes["timeout"]'
TRIMMED = POOLED.replace(
    "        return {",
    "        values = [v for v in values if v <= 3 * percentile(values, 0.5)]\n        return {",
)
GROUP = 'groups.setdefault(record["cache"], []).append(record)'
FIXED = "1 in (len(set(prompts)), len(set(lengths)))"
TTFT = '[self._first_s(record) - record["intended_s"]]'
E2E = '[self._last_s(record) - record["intended_s"]]'

WRONG = [
    row(
        "wrong: the role is the first token",
        lambda: edited((FIRST, 'record["chunks"][0]["time_s"]')),
        (0, 4, 3, 3, 3, 1),
        contains="a role or an empty chunk is no token",
        through_nbgrader=True,
    ),
    row(
        "wrong: the first text is the first token",
        lambda: edited((FIRST, FIRST.replace('chunk["num_tokens"] > 0', 'chunk["text"]'))),
        (0, 4, 3, 3, 3, 1),
    ),
    row(
        "wrong: the last text is the last token",
        lambda: edited((LAST, LAST.replace('chunk["num_tokens"] > 0', 'chunk["text"]'))),
        (0, 4, 3, 3, 3, 1),
        contains="did not end with the last token",
    ),
    row(
        "wrong: the usage is the last token",
        lambda: edited((LAST, 'record["chunks"][-1]["time_s"]')),
        (0, 4, 3, 3, 3, 1),
        contains="did not end with the last token",
    ),
    row(
        "wrong: until the stream was closed",
        lambda: edited((LAST, 'record["ended_s"]')),
        (0, 4, 3, 3, 3, 1),
    ),
    row(
        "wrong: chunks for tokens",
        lambda: edited((COUNT, 'sum(chunk["num_tokens"] > 0 for chunk in record["chunks"])')),
        (0, 4, 3, 3, 3, 1),
        contains="a chunk of k tokens is k tokens",
    ),
    row(
        "wrong: words for tokens",
        lambda: edited((COUNT, 'sum(len(chunk["text"].split()) for chunk in record["chunks"])')),
        (0, 4, 3, 3, 3, 1),
    ),
    row(
        "wrong: one gap per chunk",
        lambda: edited(("[(time_s - before_s) / num_tokens] * num_tokens", "[time_s - before_s]")),
        (0, 4, 3, 3, 3, 1),
        contains="N - 1 per answer",
    ),
    row(
        "wrong: a gap before the first token",
        lambda: edited(("[0.0] * (num_tokens - 1)", "[0.0] * num_tokens")),
        (0, 4, 0, 1, 3, 1),
        contains="no longer reported as before",
    ),
    row(
        "wrong: no time per token for one token",
        lambda: edited(("            return []\n", "            return [0.0]\n")),
        (0, 4, 3, 3, 3, 1),
        contains="TPOT is for answers of two tokens or more",
    ),
    row(
        "wrong: no figure for no value",
        lambda: edited(("        if not values:\n            return None\n", "")),
        (0, 4, 3, 3, 3, 1),
        contains="raised an exception",
    ),
    row(
        "wrong: windows of ten seconds, averaged",
        lambda: edited((POOLED, AVERAGED)),
        (4, 0, 3, 3, 3, 1),
        contains="percentiles are never averaged",
    ),
    row(
        "wrong: without outliers",
        lambda: edited((POOLED, TRIMMED)),
        (4, 0, 3, 3, 3, 1),
        contains="a tail without outliers is none",
    ),
    row(
        "wrong: from the send",
        lambda: edited(
            (TTFT, TTFT.replace("intended", "sent")), (E2E, E2E.replace("intended", "sent"))
        ),
        (4, 0, 3, 3, 3, 1),
        contains="also if the sender was late",
    ),
    row(
        "wrong: the whole latency from the send",
        lambda: edited((E2E, E2E.replace("intended", "sent"))),
        (4, 0, 3, 3, 3, 1),
    ),
    row(
        "wrong: the sender added nothing",
        lambda: edited(('r["sent_s"] - r["intended_s"]]', "0.0]")),
        (4, 2, 3, 3, 3, 1),
        contains="what the sender itself added",
    ),
    row(
        "wrong: whoever got a token is an answer",
        lambda: edited((ANSWERS, "answers = [r for r in records if self._num_tokens(r)]")),
        (4, 4, 0, 3, 3, 1),
        contains="failed requests were among",
    ),
    row(
        "wrong: times of whoever got a token",
        lambda: edited(
            (
                '"ttft_s": self._spread(answers,',
                '"ttft_s": self._spread([r for r in records if r["chunks"]],',
            )
        ),
        (4, 4, 0, 3, 3, 1),
    ),
    row(
        "wrong: attainment of survivors",
        lambda: edited((TRIED, "len(answers)")),
        (4, 4, 0, 3, 3, 1),
        contains="the share of all who tried",
    ),
    row(
        "wrong: attainment of all, the rejected too",
        lambda: edited((TRIED, "len(records)")),
        (4, 4, 0, 3, 3, 1),
    ),
    row(
        "wrong: attainment of the first limit alone",
        lambda: edited(
            (
                "is_soon and all(value <= self.tpot_limit_s for value in self._tpot_s(record))",
                "is_soon",
            )
        ),
        (4, 4, 0, 3, 3, 1),
    ),
    row(
        "wrong: tokens of failures",
        lambda: edited(
            ("sum(map(self._num_tokens, answers))", "sum(map(self._num_tokens, records))")
        ),
        (4, 4, 0, 3, 3, 1),
        contains="failures were in the rates",
    ),
    row(
        "wrong: the time that answers took",
        lambda: edited(
            (
                'max(r["ended_s"] for r in records)',
                'max(r["ended_s"] for r in records if r["outcome"] == "ok")',
            )
        ),
        (4, 4, 0, 3, 3, 1),
    ),
    row(
        "wrong: no word of the rejected",
        lambda: edited(("for name in OUTCOMES}", "for name in OUTCOMES[:3]}")),
        (4, 4, 1, 1, 3, 1),
        contains="every request is counted",
    ),
    row(
        "wrong: warm and cold together",
        lambda: edited((GROUP, GROUP.replace('record["cache"]', '"cold"'))),
        (4, 4, 3, 0, 3, 1),
        contains="warm and cold records were mixed",
    ),
    row(
        "wrong: warm ones left out",
        lambda: edited((GROUP, f'if record["cache"] == "cold":\n                {GROUP}')),
        (4, 4, 3, 0, 3, 1),
    ),
    row(
        "wrong: an entry for all together, too",
        lambda: edited(
            (
                "        return {state: self._figures(group) for state, group in groups.items()}\n",
                '        groups["all"] = self.records\n'
                "        return {state: self._figures(group) for state, group in groups.items()}\n",
            )
        ),
        (4, 4, 3, 0, 3, 1),
    ),
    row(
        "wrong: fixed is said of prompts alone",
        lambda: edited((FIXED, "len(set(prompts)) == 1")),
        (4, 4, 3, 0, 3, 1),
        contains="has_fixed_lengths was not",
    ),
    row(
        "wrong: fixed is said if both are",
        lambda: edited((FIXED, "len(set(prompts)) == len(set(lengths)) == 1")),
        (4, 4, 3, 0, 3, 1),
    ),
    row(
        "wrong: the mean length for the median",
        lambda: edited(
            ('"p50": percentile(lengths, 0.5), "max"', '"p50": sum(lengths) / len(lengths), "max"')
        ),
        (4, 4, 3, 0, 3, 1),
        contains="min, p50 and max of both",
    ),
    row(
        "partial: right report, untouched test",
        lambda: solved_but("lab1-regression"),
        (4, 4, 3, 3, 0, 1),
    ),
    row(
        "partial: untouched report, right test and bonus",
        lambda: solved_but("lab1-report"),
        (0, 0, 0, 0, 3, 1),
        through_nbgrader=True,
    ),
    row(
        "partial: no bonus",
        lambda: solved_but("lab1-bonus"),
        (4, 4, 3, 3, 3, 0),
        contains="the smallest n",
    ),
    row(
        "partial: a bonus of one too few",
        lambda: solved_but(
            "lab1-bonus",
            "def samples_needed(share, confidence):\n"
            "    return int(math.log(1 - confidence) / math.log(share))",
        ),
        (4, 4, 3, 3, 3, 0),
    ),
    row(
        "partial: a bonus that is no whole number",
        lambda: solved_but(
            "lab1-bonus",
            "def samples_needed(share, confidence):\n"
            "    return math.log(1 - confidence) / math.log(share)",
        ),
        (4, 4, 3, 3, 3, 0),
    ),
    row(
        "partial: a test of the role alone",
        lambda: solved_but(
            "lab1-regression",
            "def test_report(make_report):\n"
            "    one = record('one', 0.0, [chunk(0.1), chunk(0.7, 1, 'Yes')])\n"
            "    figures = make_report([one], 1.0, 1.0).figures()\n"
            "    assert math.isclose(figures['cold']['ttft_s']['max'], 0.7)",
        ),
        (4, 4, 3, 3, 1, 1),
        contains="averages the percentiles",
    ),
    row(
        "partial: a test of windows and failures alone",
        lambda: solved_but(
            "lab1-regression",
            "def test_report(make_report):\n"
            "    slow = [record('a', 0.0, [chunk(0.2, 1)]), record('b', 50.0, [chunk(58.0, 1)])]\n"
            "    lost = record('c', 60.0, [], outcome='error', ended_s=61.0)\n"
            "    figures = make_report([*slow, lost], 10.0, 1.0).figures()['cold']\n"
            "    assert math.isclose(figures['ttft_s']['max'], 8.0)\n"
            "    assert math.isclose(figures['attainment'], 2 / 3)",
        ),
        (4, 4, 3, 3, 2, 1),
        contains="takes the role",
    ),
    row(
        "partial: a test that asks for an order of keys",
        lambda: solved_but(
            "lab1-regression",
            BANK.solution("lab1-regression")
            + "\n    assert list(figures)[:3] == ['requests', 'outcomes', 'ttft_s']\n",
        ),
        (4, 4, 3, 3, 0, 1),
        contains="correct implementation",
    ),
]

"""Lab 2's wrong and partial fixes: each one an edit of the solution, with its score."""

from __future__ import annotations

from autograder.bank.lab2 import (
    BANK,
    FULL,
    edited,
    row,
    solved_but,
)

ANSWERS = "        rows = [[request.id, 1] for request in answering]\n"
BUDGET = "        budget = self.token_budget - len(rows)\n"
SHARE = "num_tokens = min(request.num_left, budget)\n"
ENOUGH = "            if num_tokens > 0:\n"
ROWS = "        return rows"
QUEUE = "        for request in prompts:\n"
BYPASS = "                num_slots = min(num_slots, self.max_bypasses - request.num_bypasses)\n"
NEWEST = "            victims.append(staying.pop())\n"
NO_VICTIMS = "        if not victims:\n"
ANSWERING = "        answering = [request for request in staying if request.is_answering]\n"

WRONG = [
    row(
        "wrong: prompts before answers",
        lambda: edited(
            (ANSWERS, "        rows = []\n"),
            (BUDGET, "        budget = self.token_budget\n"),
            (ROWS, "        return rows + [[request.id, 1] for request in answering[:budget]]\n"),
        ),
        (0, 4, 3, 3, 3, 1),
        contains="got no token",
        through_nbgrader=True,
    ),
    row(
        "wrong: the newest answer skips the first step of a full house",
        lambda: edited(
            (
                ANSWERING,
                ANSWERING + "        if waiting and len(answering) == self.max_running:\n"
                "            answering = answering[: getattr(self, 'end', -1)]\n"
                "            self.end = None\n",
            )
        ),
        (0, 4, 3, 3, 3, 1),
    ),
    row(
        "wrong: whole prompts, as long as there is budget",
        lambda: edited((SHARE, "num_tokens = request.num_left if budget > 0 else 0\n")),
        (0, 0, 3, 3, 3, 1),
        contains="paused for longer",
    ),
    row(
        "wrong: whole prompts, if they fit into the budget",
        lambda: edited((SHARE, "num_tokens = request.num_left * (request.num_left <= budget)\n")),
        (4, 0, 0, 3, 3, 1),
        contains="never finished",
    ),
    row(
        "wrong: answers are not counted",
        lambda: edited((BUDGET, "        budget = self.token_budget\n")),
        (4, 0, 3, 3, 3, 1),
        contains="more tokens than its budget",
    ),
    row(
        "wrong: chunks of 16 tokens",
        lambda: edited((SHARE, "num_tokens = min(request.num_left, budget, 16)\n")),
        (4, 0, 0, 3, 3, 1),
    ),
    row(
        "wrong: one prompt per step",
        lambda: edited((QUEUE, "        for request in prompts[:1]:\n")),
        (4, 0, 3, 3, 3, 1),
        contains="left budget unused",
    ),
    row(
        "wrong: a lone prompt gets half of the budget",
        lambda: edited(
            (
                SHARE,
                "num_tokens = min(request.num_left, -(-budget // (2 if "
                "len(prompts) == 1 else 1)))\n",
            )
        ),
        (4, 0, 1, 3, 3, 1),
        contains="no longer served as before",
    ),
    row(
        "wrong: the last token of a lone prompt is never computed",
        lambda: edited(
            (ENOUGH, "            if num_tokens > (request.num_left == 1 == len(prompts)):\n")
        ),
        (4, 4, 0, 3, 3, 1),
        contains="never finished",
    ),
    row(
        "wrong: strictly first come, first served",
        lambda: edited((BYPASS + "                continue\n", "                break\n")),
        (4, 4, 0, 3, 3, 1),
        contains="a small request that fits waited",
    ),
    row(
        "wrong: whoever fits may pass, for ever",
        lambda: edited((BYPASS, "")),
        (4, 4, 0, 3, 3, 1),
        contains="more than max_bypasses",
    ),
    row(
        "wrong: passed once too often",
        lambda: edited((BYPASS, BYPASS.replace("num_bypasses)", "num_bypasses + 1)"))),
        (4, 4, 0, 3, 3, 1),
    ),
    row(
        "wrong: passed once too seldom",
        lambda: edited((BYPASS, BYPASS.replace("num_bypasses)", "num_bypasses - 1)"))),
        (4, 4, 0, 3, 3, 1),
    ),
    row(
        "wrong: short prompts first",
        lambda: edited(
            (QUEUE, "        for request in sorted(prompts, key=lambda r: r.num_left):\n")
        ),
        (4, 4, 0, 3, 3, 1),
        contains="although an earlier one was due",
    ),
    row(
        "wrong: more run than may",
        lambda: edited(("self.max_running - len(running)", "self.max_running")),
        (4, 2, 3, 3, 3, 1),
        contains="more requests were running",
    ),
    row(
        "wrong: a row twice",
        lambda: edited((ROWS, "        return rows + rows[-1:]\n")),
        (4, 2, 3, 3, 3, 1),
        contains="computed exactly once",
    ),
    row(
        "wrong: a victim has a row",
        lambda: edited(
            ("self._rows(answering, prompts)", "self._rows([*answering, *victims], prompts)")
        ),
        (4, 4, 3, 0, 3, 1),
        contains="put out and had a row",
    ),
    row(
        "wrong: the oldest makes room",
        lambda: edited((NEWEST, NEWEST.replace("pop()", "pop(0)"))),
        (4, 4, 3, 0, 3, 1),
        contains="the wrong requests made room",
    ),
    row(
        "wrong: everybody makes room",
        lambda: edited(
            (
                NEWEST + "            num_free_blocks += victims[-1].num_blocks\n",
                "            staying, victims = [], running[::-1]\n",
            )
        ),
        (4, 4, 3, 0, 3, 1),
    ),
    row(
        "wrong: what victims free is given to newcomers",
        lambda: edited(
            (
                NO_VICTIMS,
                "        num_free_blocks += sum(request.num_blocks for request in victims)\n"
                "        if True:\n",
            )
        ),
        (4, 4, 3, 0, 3, 1),
        contains="admitted somebody else",
    ),
    row(
        "wrong: the same free blocks for two",
        lambda: edited(("            num_free_blocks -= request.num_new_blocks\n", "")),
        (4, 4, 3, 0, 3, 1),
        contains="blocks that were not there",
    ),
    row(
        "wrong: cannot plan without prompts",
        lambda: edited((ROWS, "        assert max(r.num_left for r in prompts)\n" + ROWS)),
        (0, 0, 0, 0, 3, 1),
        contains="raised an exception",
    ),
    row(
        "partial: right planner, untouched test",
        lambda: solved_but("lab2-regression"),
        (4, 4, 3, 3, 0, 1),
    ),
    row(
        "partial: untouched planner, right test and bonus",
        lambda: solved_but("lab2-planner"),
        (0, 0, 0, 0, 3, 1),
        through_nbgrader=True,
    ),
    row(
        "partial: no bonus",
        lambda: solved_but("lab2-bonus"),
        (4, 4, 3, 3, 3, 0),
        contains="fixed part",
    ),
    row(
        "partial: a bonus that forgets the case without a budget",
        lambda: solved_but(
            "lab2-bonus",
            "def largest_budget(gap_us, base_us, token_us, max_running):\n"
            "    return (gap_us - base_us) // token_us",
        ),
        (4, 4, 3, 3, 3, 0),
    ),
    row(
        "partial: a bonus that is no whole number",
        lambda: solved_but(
            "lab2-bonus",
            "def largest_budget(gap_us, base_us, token_us, max_running):\n"
            "    return (gap_us - base_us) / token_us",
        ),
        (4, 4, 3, 3, 3, 0),
    ),
    row(
        "right: a bonus that searches",
        lambda: solved_but(
            "lab2-bonus",
            "def largest_budget(gap_us, base_us, token_us, max_running):\n"
            "    return max((n for n in range(max_running + 1, 2000)"
            " if base_us + n * token_us <= gap_us), default=0)",
        ),
        FULL,
    ),
    row(
        "partial: a test of answers beside a prompt alone",
        lambda: solved_but(
            "lab2-regression",
            "def test_planner(make_planner):\n"
            "    planner = make_planner(token_budget=9, max_running=2, max_bypasses=1)\n"
            "    answer = view('answer', is_answering=True, num_blocks=1)\n"
            "    rows, _ = planner.plan([answer, view('p', num_left=50)], [], 9)\n"
            "    assert 'answer' in dict(rows)",
        ),
        (4, 4, 3, 3, 1, 1),
        contains="gives a row to a victim",
    ),
    row(
        "partial: a test of memory alone",
        lambda: solved_but(
            "lab2-regression",
            "def test_planner(make_planner):\n"
            "    planner = make_planner(token_budget=9, max_running=2, max_bypasses=1)\n"
            "    answer = view('answer', is_answering=True, num_blocks=1, num_new_blocks=1)\n"
            "    p = view('p', num_left=5, num_blocks=1)\n"
            "    rows, victims = planner.plan([answer, p], [], 0)\n"
            "    assert dict(rows) == {'answer': 1} and list(victims) == ['p']",
        ),
        (4, 4, 3, 3, 1, 1),
        contains="computes a whole prompt",
    ),
    row(
        "partial: a test that asks for an order of rows",
        lambda: solved_but(
            "lab2-regression",
            BANK.solution("lab2-regression")
            + "\n    rows, _ = planner.plan([view('p', num_left=5), answer], [], 9)\n"
            "    assert [name for name, _ in rows] == ['answer', 'p']\n",
        ),
        (4, 4, 3, 3, 0, 1),
        contains="correct implementation",
    ),
]

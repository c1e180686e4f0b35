"""`minserve gate`: each way of getting worse ends with exit code 1, and says so."""

from __future__ import annotations

import copy
import json

import pytest
import typer
from typer.testing import CliRunner

from minserve.cli.gate import gate
from minserve.errors import ConfigError, DataNotFound
from minserve.northstar.caching import policy_table

app = typer.Typer()
app.command()(gate)
COLUMN = {
    "requests": 100,
    "qualified": 95,
    "leaks": 0,
    "stale_hits": 0,
    "false_hits": 0,
    "by_kind": {"policy": {"requests": 60, "qualified": 58}},
}
BASE = {
    "rows": [
        {
            "policy": "continuous",
            "prefix_reuse": True,
            "quality": {"num_qualified": 30, "num_requests": 32},
        }
    ],
    "reuse": {
        "columns": {"exact cache": COLUMN},
        "policy": json.loads(json.dumps(policy_table().as_dict())),
        "authorisation": {"partition_before_look_up": True},
    },
}


@pytest.fixture
def judge(tmp_path):
    def judge(new, base=BASE, *options, text=None):
        for name, content in (("base.json", base), ("new.json", new)):
            said = text if text and name == "new.json" else json.dumps(content)
            (tmp_path / name).write_text(said, encoding="utf-8")
        files = [str(tmp_path / "base.json"), str(tmp_path / "new.json")]
        result = CliRunner().invoke(app, [*files, "--json", *options])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, json.loads(result.stdout.splitlines()[-1])["reasons"]

    return judge


def changed(path: str, value):
    new = copy.deepcopy(BASE)
    *way, last = path.split("/")
    place = new
    for step in way:
        place = place[int(step)] if step.isdigit() else place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return new


def test_the_same_again_and_better_pass(judge):
    assert judge(BASE) == (0, [])
    assert judge(changed("reuse/columns/exact cache/qualified", 99)) == (0, [])


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("rows/0/quality/num_qualified", 29, "90.6% of the answers are qualified"),
        ("rows/0/quality", None, "quality was checked in BASE"),
        ("reuse/columns/exact cache/qualified", 94, "94.0%"),
        ("reuse/columns/exact cache/by_kind/policy/qualified", 57, "exact cache, policy: 95.0%"),
        ("reuse/columns/exact cache/leaks", 1, "1 answers leaked"),
        ("reuse/columns/exact cache/leaks", ..., "None answers leaked"),
        ("reuse/columns/exact cache/stale_hits", 1, "1 stale hits"),
        ("reuse/columns/exact cache/false_hits", 2, "2 false hits"),
        ("reuse/columns", {}, "leaks were counted in BASE"),
        ("reuse/policy/policy/scope", "public", "class policy: shared by public"),
        ("reuse/policy/chat/scope", "tenant", "class chat: shared by tenant"),
        ("reuse/policy/account/freshness_s", 60, "class account: cached, and never was"),
        ("reuse/policy/report/semantic", True, "class report: answers other wordings"),
        ("reuse/policy/report/check", "", "class report: kept unchecked"),
        ("reuse/policy/policy/check", ..., "class policy: kept unchecked"),
        ("reuse/policy/fresh", {"scope": "tenant", "freshness_s": 5, "semantic": False}, "fresh"),
        ("reuse/policy", {}, "the policy table is in BASE"),
        ("reuse/authorisation/partition_before_look_up", False, "no longer holds"),
        ("reuse/authorisation", ..., "no longer holds"),
    ],
)
def test_whatever_is_worse_exits_1_and_says_why(judge, path, value, said):
    code, reasons = judge(changed(path, value))
    assert code == 1
    assert any(said in reason for reason in reasons), reasons


def test_two_leaks_do_not_excuse_each_other(judge):
    leaky = changed("reuse/columns/exact cache/leaks", 1)
    assert judge(leaky, leaky)[0] == 1


def test_a_stated_tolerance_is_for_quality_only(judge):
    worse = changed("reuse/columns/exact cache/qualified", 94)
    assert judge(worse, BASE, "--tolerance", "0.02")[0] == 0
    leaky = changed("reuse/columns/exact cache/leaks", 1)
    assert judge(leaky, BASE, "--tolerance", "0.02")[0] == 1


def test_reports_without_any_checked_answer_do_not_pass(judge):
    assert judge({"rows": []}, {"rows": []})[0] == 1


def test_the_report_may_be_the_last_line_of_what_was_printed(judge):
    assert judge(BASE, text="a table\n" + json.dumps(BASE)) == (0, [])


def test_a_file_that_is_no_report_is_a_clear_error(judge, tmp_path):
    with pytest.raises(ConfigError, match="no JSON report"):
        judge(BASE, text="nothing")
    with pytest.raises(DataNotFound):
        gate(tmp_path / "absent.json", tmp_path / "absent.json")

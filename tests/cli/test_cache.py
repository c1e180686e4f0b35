"""`minserve cache`: explain, policy, invalidate."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from minserve.cli.cache import cache
from minserve.reuse.stores import SqliteStore

ASKED = {
    "identity": {"tenant": "alder", "subject": "anna"},
    "scope": "tenant",
    "answer_class": "policy",
    "messages": [{"role": "user", "content": "What is the late fee?"}],
    "model": {"name": "nano"},
}


@pytest.fixture
def run(tmp_path):
    def run(*args):
        result = CliRunner().invoke(cache, [str(arg) for arg in args])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.stdout

    return run


def explain(run, tmp_path, one, other):
    for name, content in (("a.json", one), ("b.json", other)):
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    return run("explain", tmp_path / "a.json", tmp_path / "b.json", "--json")


def test_explain_names_the_field_that_separates(run, tmp_path):
    said = explain(run, tmp_path, ASKED, ASKED | {"policy_version": "v2"})
    assert said.startswith('policy_version: null and "v2"')
    report = json.loads(said.splitlines()[-1])
    assert report["same_partition"] and not report["same_key"]


def test_explain_says_that_nothing_separates_two_spellings(run, tmp_path):
    said = explain(run, tmp_path, ASKED, dict(reversed(ASKED.items())))
    assert said.startswith("Nothing separates them")


def test_explain_says_when_two_tenants_ask(run, tmp_path):
    other = ASKED | {"identity": {"tenant": "marlow", "subject": "mia"}}
    assert "different partitions" in explain(run, tmp_path, ASKED, other)


def test_the_policy_table_never_caches_what_is_personal_or_acts(run):
    classes = json.loads(run("policy", "--json").splitlines()[-1])["classes"]
    for name in ("account", "account-report", "action", "status"):
        assert classes[name]["freshness_s"] == 0
    assert {row["scope"] for row in classes.values()} <= {"public", "tenant", "subject"}


def test_invalidate_removes_from_a_shared_store(run, tmp_path):
    store = SqliteStore(tmp_path / "cache.db")
    store.put("p", "k", "v", tags=['["source","faq/7"]'], expires_s=9.0, now_s=0.0, since=0)
    store.close()
    where = f"sqlite:{tmp_path / 'cache.db'}"
    said = run("invalidate", '{"kind": "source_changed", "source": "faq/7"}', "--store", where)
    assert "1 entries removed" in said

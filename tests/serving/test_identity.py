from __future__ import annotations

import hmac
import json
import os

import pytest

from minserve.errors import ConfigError
from minserve.request import Identity, WorkloadClass
from minserve.serving.identity import (
    ApiKey,
    KeyFile,
    KeyRing,
    Principal,
    Quota,
    Salts,
    Scope,
    hash_of,
    new_secret,
    read_keys,
    within,
    write_keys,
)


def key(secret: str = "s1", id: str = "k1", **more) -> ApiKey:
    fields = {"tenant": "kestrel", "subject": "thora", **more}
    return ApiKey(id, hash_of(secret), **fields)


def test_key_stands_for_what_its_record_says():
    record = key(roles=("operator",), workload_class=WorkloadClass.BATCH, quota=Quota(3))
    principal = KeyRing([key("other", "k0"), record]).find("s1")
    assert principal.identity == Identity("kestrel", "thora", frozenset({"operator"}))
    assert principal.workload_class is WorkloadClass.BATCH
    assert (principal.quota.max_concurrent, principal.key_id) == (3, "k1")
    assert principal.is_operator


@pytest.mark.parametrize("secret", ["", "s", "s11", "S1", hash_of("s1"), "\udc80", "ключ"])
def test_other_secrets_are_nobody(secret):
    assert KeyRing([key()]).find(secret) is None


def test_every_key_is_compared_whichever_matches(monkeypatch):
    calls = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: calls.append(a) or real(a, b))
    ring = KeyRing(key(f"s{n}", f"k{n}") for n in range(5))
    for secret in ("s0", "s4", "nobody"):
        calls.clear()
        ring.find(secret)
        assert len(calls) == 5


def test_fresh_secrets_differ_and_are_long():
    assert len({new_secret() for _ in range(100)}) == 100
    assert len(new_secret()) >= 43


def test_key_file_holds_no_secret_and_comes_back_the_same(tmp_path):
    file = tmp_path / "keys.json"
    keys = [
        key(quota=Quota(2, 10.5, 3), roles=("operator",), application="helpdesk"),
        key("s2", "k2", workload_class=WorkloadClass.INTERACTIVE),
    ]
    write_keys(file, keys)
    assert read_keys(file) == keys
    assert "s1" not in file.read_text() and file.stat().st_mode & 0o077 == 0
    assert os.listdir(tmp_path) == ["keys.json"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"sha256": "abc"},
        {"sha256": "xyz" * 20},
        {"sha256": 5},
        {"tenant": ""},
        {"subject": None},
        {"workload_class": "vip"},
        {"quota": {"max_concurrent": "9"}},
        {"quota": {"per_day": 9}},
        {"password": "p"},
    ],
    ids=str,
)
def test_wrong_record_is_refused_with_its_reason(tmp_path, wrong):
    record = {"id": "k1", "sha256": hash_of("s1"), "tenant": "t", "subject": "s", **wrong}
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [record]}))
    with pytest.raises(ConfigError, match=r"keys\.json is unreadable"):
        read_keys(file)


def test_key_of_two_records_is_refused(tmp_path):
    write_keys(tmp_path / "keys.json", [key(), key(id="k2")])
    with pytest.raises(ConfigError, match="two keys"):
        read_keys(tmp_path / "keys.json")


def test_changed_file_is_taken_in_and_a_revoked_key_is_nobody(tmp_path):
    file = tmp_path / "keys.json"
    write_keys(file, [key()])
    keys = KeyFile(file)
    assert not keys.refresh() and keys.find("s1")
    write_keys(file, [key("s2", "k2")])
    assert keys.refresh()
    assert keys.find("s1") is None and keys.find("s2").key_id == "k2"


def test_unreadable_file_changes_nothing_until_it_is_mended(tmp_path, caplog):
    file = tmp_path / "keys.json"
    write_keys(file, [key()])
    keys = KeyFile(file, also=[key("demo", "d")])
    file.write_text("{")
    assert not keys.refresh() and keys.find("s1") and keys.find("demo")
    assert "unreadable" in caplog.text
    file.unlink()
    assert not keys.refresh() and keys.find("s1")
    write_keys(file, [])
    assert keys.refresh() and keys.find("s1") is None and keys.find("demo")


def person(tenant="a", subject="x", application="") -> Principal:
    return Principal(Identity(tenant, subject), application=application)


@pytest.mark.parametrize(
    ("scope", "other", "shares"),
    [
        (Scope.USER, person("a", "x"), True),
        (Scope.USER, person("a", "y"), False),
        (Scope.USER, person("b", "x"), False),
        (Scope.TENANT, person("a", "y"), True),
        (Scope.TENANT, person("b", "x"), False),
        (Scope.TENANT, person("b", "x", "bot"), False),
        (Scope.APPLICATION, person("b", "y"), False),
        (Scope.APPLICATION, person("a", "y"), True),
        (Scope.GLOBAL, person("b", "y"), True),
    ],
    ids=str,
)
def test_salt_is_shared_exactly_within_the_scope(scope, other, shares):
    salts = Salts(scope, b"secret")
    assert (salts.of(person()) == salts.of(other)) is shares


def test_application_scope_crosses_tenants_of_one_application_only():
    salts = Salts(Scope.APPLICATION)
    bot = salts.of(person("a", "x", "bot"))
    assert bot == salts.of(person("b", "y", "bot"))
    assert bot != salts.of(person("a", "x", "other")) != salts.of(person("a", "x"))


def test_salts_of_different_kinds_never_meet():
    names = [person("a", "b"), person("a b", ""), person('a", "b', ""), person("a", "b", "a")]
    salts = [Salts(scope, b"s").of(p) for scope in (Scope.USER, Scope.APPLICATION) for p in names]
    assert len(set(salts)) == 7  # the first and the last are the same user


def test_salt_cannot_be_computed_without_the_secret():
    assert Salts().of(person()) != Salts().of(person())
    assert Salts(secret=b"1").of(person()) != Salts(secret=b"2").of(person())


def test_partition_divides_a_share_and_never_reaches_another():
    salts = Salts()
    own, other = salts.of(person("a", "x")), salts.of(person("b", "x"))
    assert within(own, "") == own
    assert within(own, "p") == within(own, "p") != within(own, "q")
    assert len({own, other, within(own, "p"), within(other, "p"), within(own, other)}) == 5

"""One suite over all stores: memory, SQLite and a real Redis keep the same promises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import small

from minserve.errors import ConfigError
from minserve.learn.conformance.cache_key import asking
from minserve.reuse import stores
from minserve.reuse.invalidation import tags_of
from minserve.reuse.key import partition_of
from minserve.reuse.redis_store import RedisStore
from minserve.reuse.stores import MemoryStore, SqliteStore, open_store


def put(store, key, value="v", *, partition="a", tags=("t",), expires_s=100.0, now_s=0.0, since=0):
    return store.put(
        partition, key, value, tags=tags, expires_s=expires_s, now_s=now_s, since=since
    )


def test_an_entry_is_found_in_its_own_partition_only(new_store):
    store = new_store()
    assert put(store, "k", '{"text": "é \U0001f600"}')
    assert store.get("a", "k", 1.0) == '{"text": "é \U0001f600"}'
    assert store.get("b", "k", 1.0) is None
    assert store.get("a", "l", 1.0) is None


def test_a_key_cannot_slide_into_its_partition(new_store):
    store = new_store()
    put(store, "y:z", partition="x")
    assert store.get("x:y", "z", 1.0) is None


def test_an_entry_is_gone_from_its_expiry_on_and_hits_do_not_move_that(new_store):
    store = new_store()
    put(store, "k", expires_s=10.0)
    for now_s in (0.0, 5.0, 9.999):
        assert store.get("a", "k", now_s) == "v"
    assert store.get("a", "k", 10.0) is None
    assert store.get("a", "k", 9.0) is None, "once expired it is removed"
    assert store.size() == (0, 0)


def test_what_has_expired_goes_as_others_come_though_nobody_asks_for_it(new_store):
    store = new_store()
    for number in range(40):
        put(store, f"old{number}", tags=(f"old{number}",), expires_s=10.0 + number % 3)
    put(store, "replaced", expires_s=10.0)
    put(store, "replaced", "anew", expires_s=1e6)
    for number in range(8):
        put(store, f"new{number}", now_s=20.0, expires_s=1e6)
    assert store.size()[0] == 9
    assert store.get("a", "replaced", 20.0) == "anew"
    assert store.invalidate(["old3"]) == 0 and store.invalidate(["t"]) == 9
    assert store.size() == (0, 0)


def test_sweeping_is_no_use_of_what_stays(new_store):
    store = new_store(max_entries=3)
    put(store, "k", expires_s=10.0)
    put(store, "k", expires_s=1e6, now_s=1.0)
    put(store, "l", expires_s=1e6, now_s=100.0)
    put(store, "m", expires_s=1e6, now_s=200.0)
    put(store, "n", expires_s=1e6, now_s=300.0)
    assert store.get("a", "k", 300.0) is None and store.get("a", "l", 300.0) == "v"


def test_entries_of_one_asker_share_their_partition_and_tags():
    one, other = asking("What?"), asking("When?")
    assert partition_of(one) is partition_of(other)
    assert all(x is y for x, y in zip(tags_of(one, ["a"]), tags_of(other, ["a"]), strict=True))


def test_memory_is_bounded_whatever_has_come_and_gone():
    store = MemoryStore(max_entries=100)
    for number in range(20_000):
        put(store, f"k{number}", tags=(f"t{number}",), expires_s=1e6 + number, now_s=number)
        put(store, "again", tags=("again",), expires_s=2e6 + number, now_s=number)
    for number in range(1_000):
        store.remove("a", f"k{19_999 - number}")
        store.invalidate([f"gone{number}"])
    entries = store._entries
    assert len(entries) <= 100 and len(store._tagged) <= 100
    assert len(entries._ends) <= 2 * 100 + 65


def test_the_least_recent_entry_goes_when_there_are_too_many(new_store):
    store = new_store(max_entries=3)
    for number in range(3):
        put(store, f"k{number}", now_s=number * 100.0, expires_s=1e6)
    assert store.get("a", "k0", 300.0) == "v"  # k1 is now the least recent
    put(store, "k3", now_s=400.0, expires_s=1e6)
    assert [store.get("a", f"k{n}", 500.0) is not None for n in range(4)] == [
        True,
        False,
        True,
        True,
    ]
    assert store.size()[0] == 3


def test_bytes_are_bounded_and_what_is_larger_than_all_of_it_is_not_stored(new_store):
    store = new_store(max_bytes=1_000)
    for number in range(20):
        assert put(store, f"k{number}", "é" * 100, now_s=number * 100.0, expires_s=1e6)
        assert store.size()[1] <= 1_000
    assert 3 <= store.size()[0] <= 5, "200 bytes of UTF-8 each, and their tags"
    assert not put(store, "large", "x" * 1_001)
    assert store.get("a", "k19", 2_000.0) is not None


def test_storing_again_replaces_the_entry_and_its_tags(new_store):
    store = new_store()
    put(store, "k", "old", tags=("x",))
    put(store, "k", "new", tags=("y",))
    assert store.size()[0] == 1
    assert store.invalidate(["x"]) == 0
    assert store.get("a", "k", 1.0) == "new"
    assert store.invalidate(["y"]) == 1
    assert store.size() == (0, 0)


def test_an_event_removes_every_entry_with_one_of_its_tags(new_store):
    store = new_store()
    put(store, "k1", tags=("x", "y"))
    put(store, "k2", tags=("y",), partition="b")
    put(store, "k3", tags=("z",))
    assert store.invalidate(["x", "y"]) == 2
    assert store.get("a", "k1", 1.0) is store.get("b", "k2", 1.0) is None
    assert store.get("a", "k3", 1.0) == "v"


def test_nothing_is_stored_that_an_event_overtook(new_store):
    store = new_store()
    began = store.num_events()
    store.invalidate(["x"])
    assert not put(store, "k", tags=("x", "y"), since=began)
    assert put(store, "k", tags=("y",), since=began)
    assert put(store, "k", tags=("x",), since=store.num_events())


def test_a_store_that_forgot_its_events_stores_nothing_begun_before(new_store, monkeypatch):
    monkeypatch.setattr(stores, "MAX_EVENTS", 3)
    store = new_store()
    began = store.num_events()
    for number in range(5):
        store.invalidate([f"t{number}"])
    assert not put(store, "k", tags=("other",), since=began)
    assert not put(store, "k", since=store.num_events() + 1), "a store that was emptied"
    assert put(store, "k", since=store.num_events())


def test_removing_twice_or_what_is_not_there_does_no_harm(new_store):
    store = new_store()
    put(store, "k")
    store.remove("a", "k")
    store.remove("a", "k")
    assert store.size() == (0, 0)


keys, tags = st.sampled_from("kl"), st.sampled_from("xyz")
steps = st.lists(
    st.tuples(st.just("put"), keys, st.sets(tags), st.integers(1, 30))
    | st.tuples(st.just("get"), keys)
    | st.tuples(st.just("remove"), keys)
    | st.tuples(st.just("invalidate"), tags)
    | st.tuples(st.just("wait"), st.integers(1, 20)),
    max_size=25,
)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@small(60)
@given(steps)
def test_a_store_is_what_a_dictionary_with_times_and_tags_is(kind, steps):
    store = MemoryStore() if kind == "memory" else SqliteStore(":memory:")
    model: dict[str, tuple[str, set[str], float]] = {}
    now_s = 0.0
    for number, (what, *rest) in enumerate(steps):
        if what == "put":
            key, with_tags, lasts_s = rest
            expires_s = now_s + lasts_s
            put(store, key, str(number), tags=with_tags, expires_s=expires_s, now_s=now_s,
                since=store.num_events())  # fmt: skip
            model[key] = (str(number), with_tags, expires_s)
        elif what == "get":
            value, _, expires_s = model.get(rest[0], (None, None, now_s))
            assert store.get("a", rest[0], now_s) == (value if now_s < expires_s else None)
        elif what == "remove":
            store.remove("a", rest[0])
            model.pop(rest[0], None)
        elif what == "invalidate":
            store.invalidate(rest)
            model = {k: v for k, v in model.items() if rest[0] not in v[1]}
        else:
            now_s += rest[0]
    for key, (value, _, expires_s) in model.items():
        assert store.get("a", key, now_s) == (value if now_s < expires_s else None)
    store.close()


def test_a_file_keeps_its_entries_and_events_over_a_restart(tmp_path):
    store = SqliteStore(tmp_path / "cache.db")
    put(store, "k")
    store.invalidate(["x"])
    store.close()
    again = SqliteStore(tmp_path / "cache.db")
    assert again.get("a", "k", 1.0) == "v"
    assert again.num_events() == 1 and not put(again, "l", tags=("x",), since=0)
    again.close()


def test_two_processes_share_one_file(tmp_path):
    one, other = SqliteStore(tmp_path / "cache.db"), SqliteStore(tmp_path / "cache.db")
    put(one, "k")
    assert other.get("a", "k", 1.0) == "v"
    other.invalidate(["t"])
    assert one.get("a", "k", 1.0) is None and not put(one, "k", since=0)
    one.close()
    other.close()


def test_two_servers_share_one_redis(redis_url):
    one, other = (RedisStore(redis_url, prefix="{shared}") for _ in range(2))
    one._redis.flushall()
    put(one, "k")
    assert other.get("a", "k", 1.0) == "v"
    other.invalidate(["t"])
    assert one.get("a", "k", 1.0) is None and not put(one, "k", since=0)
    one.close()
    other.close()


def test_what_is_deleted_is_no_longer_in_any_file(tmp_path):
    store = SqliteStore(tmp_path / "cache.db")
    put(store, "k", "a very private answer", tags=("subject",))

    def is_there():
        return any(b"a very private answer" in f.read_bytes() for f in tmp_path.iterdir())

    assert is_there()
    store.invalidate(["subject"])
    assert not is_there()
    store.close()


@pytest.mark.parametrize("where", ["", "disk", "sqlite:", "redis", "memory:x"])
def test_an_unknown_store_is_refused(where):
    with pytest.raises(ConfigError, match="no response cache"):
        open_store(where)


def test_a_store_is_opened_by_its_name(tmp_path):
    assert open_store("off") is None
    assert isinstance(open_store("memory"), MemoryStore)
    assert isinstance(open_store("redis://localhost:1"), RedisStore)
    store = open_store(f"sqlite:{tmp_path / 'cache.db'}")
    assert isinstance(store, SqliteStore)
    store.close()


def test_a_path_that_cannot_hold_a_file_is_a_clear_error(tmp_path):
    with pytest.raises(ConfigError, match="cache"):
        SqliteStore(tmp_path / "absent" / "cache.db")

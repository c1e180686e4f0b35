"""The database beneath the store: transactions, indexes, migrations."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import event, inspect, text

from minserve.errors import ConfigError
from minserve.jobs import database, schema
from minserve.jobs.database import connect
from minserve.jobs.job import Kind, State, StoreUnavailable, Submission
from minserve.jobs.store import JobStore
from minserve.request import Identity
from tests.jobs.conftest import ANN, BOB, KINDS, fresh_schema, put


def test_several_calls_can_be_one_transaction(store):
    with pytest.raises(ZeroDivisionError), store.transaction() as tx:
        store.enqueue(ANN, Submission("echo"), tx)
        raise ZeroDivisionError
    assert store.counts().num_open == 0


def test_connection_that_died_while_it_lay_idle_is_replaced_unseen(postgres, monkeypatch):
    store = JobStore(fresh_schema(postgres), KINDS)
    other = connect(postgres.url)
    ends = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid != :own")
    with other.connect() as conn:
        own = conn.scalar(text("SELECT pg_backend_pid()"))
        conn.execute(ends, {"own": own})
    with pytest.raises(StoreUnavailable):  # it was used a moment ago: not tried out
        store.now_s()
    assert store.now_s() > 0
    with other.connect() as conn:
        own = conn.scalar(text("SELECT pg_backend_pid()"))
        conn.execute(ends, {"own": own})
    monkeypatch.setattr(database, "PING_AFTER_S", 0.0)
    put(store)
    assert store.counts().num_open == 1
    store.close()
    other.dispose()


def test_sqlite_flushes_what_it_accepts_although_a_claim_may_be_put_off(tmp_path):
    store = JobStore(f"sqlite:///{tmp_path}/jobs.db", KINDS)
    with store.transaction(is_durable=False) as tx:
        assert tx.exec_driver_sql("PRAGMA synchronous").scalar() == 1  # NORMAL
    with store.transaction() as tx:
        store.enqueue(ANN, Submission("echo"), tx)
        assert tx.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL
        assert tx.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    store.close()


def test_clock_is_the_databases(url):
    store = JobStore(url, KINDS)
    assert abs(store.now_s() - time.time()) < 60
    store.close()


def test_claim_and_sweep_walk_partial_indexes_whatever_has_finished(store):
    finished = text(
        "INSERT INTO jobs (id, tenant, subject, kind, state, payload, digest, priority, turn,"
        " created_at, run_at, attempts, max_attempts, token, completed, total, owner, finished_at)"
        " WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
        " SELECT 'j' || i, 'acme', 'ann', 'echo', 'done', '1', 'd', 0, i, 1, 1, 1, 3, 1, 0, 0, 'x',"
        " 2 FROM n"
    )
    with store.transaction() as conn:
        conn.execute(finished)
    for n in range(20):
        put(store, n)
    seen, plans = [], {}
    with store.transaction() as conn:
        is_postgres = conn.dialect.name == "postgresql"
        conn.execute(text("ANALYZE jobs"))

        @event.listens_for(conn, "before_cursor_execute")
        def note(conn, cursor, statement, parameters, context, executemany):
            seen.append((statement, parameters))

        store.claim("w", 30, tx=conn)
        event.remove(conn, "before_cursor_execute", note)
        for statement, parameters in seen:
            explain = "EXPLAIN " if is_postgres else "EXPLAIN QUERY PLAN "
            rows = conn.exec_driver_sql(explain + statement, parameters).all()
            plans[statement] = "\n".join(str(row[-1]) for row in rows)
    for index in ("jobs_queued", "jobs_deadline", "jobs_lease", "jobs_waiting"):
        assert any(index in plan for plan in plans.values()), (index, plans)
    for plan in plans.values():
        assert "Seq Scan on jobs" not in plan and "SCAN jobs" not in plan.splitlines(), plan


# -- the schema


def test_migrations_make_what_the_store_queries(store):
    with store.reading() as conn:
        made = inspect(conn)
        for table in schema.metadata.sorted_tables:
            columns = {column["name"]: column for column in made.get_columns(table.name)}
            assert set(columns) == {c.name for c in table.columns}, table.name
            for c in table.columns:
                assert columns[c.name]["nullable"] == c.nullable, (table.name, c.name)
                made_type = str(columns[c.name]["type"]).replace("DOUBLE PRECISION", "REAL")
                assert made_type == str(c.type).replace("DOUBLE", "REAL"), (table.name, c.name)
            key = made.get_pk_constraint(table.name)["constrained_columns"]
            assert key == [c.name for c in table.primary_key]


def test_store_of_version_1_is_migrated_with_its_jobs(url, clock):
    engine = connect(url)
    with engine.begin() as conn:
        assert schema.migrate(conn, to=1) == 0
        for n in range(4):
            tenant, state = ("acme", "queued") if n < 3 else ("bolt", "done")
            conn.execute(
                text(
                    "INSERT INTO jobs (id, tenant, subject, kind, state, payload, digest, priority,"
                    " created_at, run_at, attempts, max_attempts, token, completed, total, owner)"
                    f" VALUES ('j{n}', '{tenant}', 'ann', 'echo', '{state}', '{n}', 'd', 0, {n}, 0,"
                    " 0, 3, 0, 0, 0, 'x')"
                )
            )
    engine.dispose()
    store = JobStore(url, KINDS, clock=clock)
    put(store, "new"), put(store, "bobs", BOB)
    order = [lease.job.payload for lease in store.claim("w", 9)]
    assert [n for n in order if n != "bobs"] == [0, 1, 2, "new"] and order.index("bobs") < 3
    assert store.get(Identity("bolt", "ann"), "j3").state is State.DONE
    store.close()
    JobStore(url, KINDS).close()  # opening it again changes nothing


def test_store_of_a_newer_minserve_is_refused(url):
    store = JobStore(url, KINDS)
    with store.transaction() as conn:
        conn.execute(text("INSERT INTO schema_version VALUES (999)"))
    store.close()
    with pytest.raises(ConfigError, match="999"):
        JobStore(url, KINDS)


@pytest.mark.parametrize("bad", ["nonsense", "mysql://x/y", "sqlite://"])
def test_url_of_no_known_database_is_refused(bad):
    with pytest.raises(ConfigError):
        JobStore(bad)


def test_kind_without_an_attempt_is_refused():
    with pytest.raises(ConfigError):
        Kind("x", "m:f", max_attempts=0)

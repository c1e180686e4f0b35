"""A store on either database, on a clock that only the test moves."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, text

from minserve.cli.temporary_postgres import TemporaryPostgres, binaries
from minserve.jobs.job import Backoff, Kind, Submission
from minserve.jobs.store import JobStore
from minserve.request import Identity

ANN, BOB = Identity("acme", "ann"), Identity("bolt", "bob")


class FakeClock:
    """Seconds that pass only when told."""

    def __init__(self, now_s: float = 1_000_000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds


def put(store, payload=None, who=ANN, **more):
    """Enqueue one job."""
    return store.enqueue(who, Submission("echo", payload, **more))


def take(store, **more):
    """Claim the only job that there is to do."""
    (lease,) = store.claim("w", **more)
    return lease


def number_only(value):
    if not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number")


KINDS = (
    Kind("echo", "jobs_handlers:echo", max_attempts=3, backoff=Backoff(2.0, 60.0)),
    Kind("number", "jobs_handlers:echo", number_only, number_only, owner="sums", max_attempts=2),
)


@pytest.fixture(scope="session")
def postgres() -> Iterator[TemporaryPostgres]:
    if binaries() is None:
        reason = "needs a real PostgreSQL: apt-get install postgresql"
        if os.environ.get("MINSERVE_CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    with TemporaryPostgres(fsync=False) as server:
        yield server


def fresh_schema(server: TemporaryPostgres) -> str:
    """The URL of an empty schema: much quicker to make than a database."""
    name = f"jobs_{uuid.uuid4().hex}"
    engine = create_engine(server.url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as conn:
        conn.execute(text(f"CREATE SCHEMA {name}"))
    engine.dispose()
    return f"{server.url}?options=-csearch_path%3D{name}"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    return fresh_schema(request.getfixturevalue("postgres"))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(url, clock) -> Iterator[JobStore]:
    store = JobStore(url, KINDS, clock=clock, draw=lambda: 0.5)
    yield store
    store.close()

"""The database under a job store: SQLite (one machine, WAL) or PostgreSQL (many workers), by URL.

Everything goes through one transaction at a time, and every time in it is the database's clock, so
that workers whose clocks differ agree on leases.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    CursorResult,
    Dialect,
    Engine,
    create_engine,
    event,
    literal_column,
    make_url,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    DisconnectionError,
    InterfaceError,
    OperationalError,
)

from minserve.errors import ConfigError
from minserve.jobs.job import StoreUnavailable

PING_AFTER_S = 1.0
"""A pooled connection that has lain idle for so long is tried out before it is used again."""


class Database:
    """Transactions, and one clock. Safe to share between threads; processes each make their own.

    Args:
        url: `sqlite:///path/to/jobs.db` or `postgresql://user@host/name`.
        clock: Seconds, for tests; the database's own clock otherwise.
        keep_s: How long a finished job is kept.
    """

    def __init__(self, url: str, clock: Callable[[], float] | None, keep_s: float) -> None:
        self.engine = connect(url)
        self._clock, self.keep_s = clock, keep_s
        is_sqlite = self.engine.dialect.name == "sqlite"
        self.insert = sqlite.insert if is_sqlite else postgresql.insert
        self.clock_sql: ColumnElement[float] = literal_column(
            "(julianday('now') - 2440587.5) * 86400.0"
            if is_sqlite
            else "extract(epoch FROM clock_timestamp())::float8"
        )
        self._ask_clock = select(self.clock_sql)

    def close(self) -> None:
        """Let go of all connections."""
        self.engine.dispose()

    @property
    def safe_url(self) -> str:
        """Where it is, without any password."""
        return self.engine.url.render_as_string(hide_password=True)

    @contextmanager
    def transaction(
        self, tx: Connection | None = None, *, is_durable: bool = True
    ) -> Iterator[Connection]:
        """One transaction for several calls: `with store.transaction() as tx: store.x(..., tx=tx)`.

        It commits at the end of the block, or nothing of it happens. Given a `tx`, joins that.
        `is_durable=False` lets SQLite put off its fsync: a power cut may undo the commit, which
        for a claim or a renewal means no more than that it never was.
        """
        if tx is not None:
            yield tx
            return
        try:
            with self.engine.connect() as conn:
                conn.info["begin"] = "IMMEDIATE"
                conn.info["sync"] = "FULL" if is_durable else "NORMAL"
                with conn.begin():
                    yield conn
        except DBAPIError as error:
            raise _unavailable(error) from error

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One consistent view."""
        try:
            with self.engine.connect() as conn:
                conn.info["begin"] = "DEFERRED"
                with conn.begin():
                    yield conn
        except DBAPIError as error:
            raise _unavailable(error) from error

    def now_s(self, tx: Connection | None = None) -> float:
        """Seconds since 1970, on the store's one clock."""
        if self._clock:
            return self._clock()
        if tx is not None:
            return tx.execute(self._ask_clock).scalar_one()
        with self.reading() as conn:
            return conn.execute(self._ask_clock).scalar_one()


class Prepared:
    """A Core statement whose text is made once: to make it anew takes longer than to run it.

    Its parameters are plain values, by name; `columns` are those that an INSERT gives.
    """

    def __init__(
        self, statement: Any, dialect: Dialect, columns: Sequence[str] | None = None
    ) -> None:
        compiled = statement.compile(dialect=dialect, column_keys=columns)
        self._text = str(compiled)
        self._names = compiled.positiontup
        self._given = {k: v for k, v in compiled.params.items() if v is not None}

    def run(self, conn: Connection, *rows: Mapping[str, Any]) -> CursorResult:
        """Carry it out once for each of `rows`."""
        values = [self._values(row) for row in rows]
        return conn.exec_driver_sql(self._text, values if len(values) > 1 else values[0])

    def _values(self, row: Mapping[str, Any]) -> Any:
        row = {**self._given, **row}
        return row if self._names is None else tuple(row[name] for name in self._names)


def _unavailable(error: DBAPIError) -> Exception:
    """What to raise for an error of the driver's: `StoreUnavailable`, or itself if it is ours."""
    gone = isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated
    if not gone:
        return error
    what = " ".join(str(error.orig or error).split())[:500]
    return StoreUnavailable(
        f"the job store does not answer: {what}",
        "see that the database runs and its URL is right; accepted jobs are safe",
    )


def connect(url: str) -> Engine:
    """The engine for a URL. Raises `ConfigError` for any other than SQLite's or PostgreSQL's."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # the latter for a port that is no number
        raise ConfigError(f"{url!r} is no database URL", "use sqlite:///jobs.db") from None
    if parsed.get_backend_name() == "postgresql":
        engine = create_engine(
            parsed.set(drivername="postgresql+psycopg"), pool_size=5, max_overflow=20
        )
        _ping_the_idle(engine)
        return engine
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        raise ConfigError(
            f"no job store at {parsed.render_as_string()}",
            "use sqlite:///path/to/jobs.db or postgresql://user@host/name",
        )
    engine = create_engine(parsed, connect_args={"timeout": 30}, pool_size=5, max_overflow=40)

    @event.listens_for(engine, "connect")
    def connected(connection, record) -> None:
        connection.isolation_level = None  # the driver is not to begin transactions by itself
        connection.execute("PRAGMA journal_mode = WAL")

    @event.listens_for(engine, "begin")
    def begin(conn: Connection) -> None:
        info, driver = conn.info, conn.connection.driver_connection
        assert driver is not None  # it was checked out just now
        wanted = info.get("sync", "FULL")
        if info.get("has_sync") != wanted:
            driver.execute(f"PRAGMA synchronous = {wanted}")
            info["has_sync"] = wanted
        driver.execute(f"BEGIN {info.get('begin', 'DEFERRED')}")

    return engine


def _ping_the_idle(engine: Engine) -> None:
    """A connection that lay idle may be dead (the server restarted): ask before it is used."""

    @event.listens_for(engine, "checkin")
    def left(connection, record) -> None:
        record.info["left_s"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def taken(connection, record, proxy) -> None:
        if time.monotonic() - record.info.get("left_s", float("inf")) > PING_AFTER_S:
            try:
                alive = engine.dialect.do_ping(connection)
            except engine.dialect.loaded_dbapi.Error:
                alive = False
            if not alive:
                raise DisconnectionError

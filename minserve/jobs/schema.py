"""The tables, and the migrations that make them.

Migrations are the one truth for what is in a database: a fresh one runs them all, an older one
those it lacks. They are plain SQL that SQLite and PostgreSQL both read, and are never edited once
released; a test compares what they make with the tables that the store queries.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Connection, Double, MetaData, Table, Text, text

from minserve.errors import ConfigError

metadata = MetaData()

jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("idempotency_key", Text),
    Column("priority", BigInteger, nullable=False),
    Column("turn", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("run_at", Double, nullable=False),
    Column("deadline_at", Double),
    Column("attempts", BigInteger, nullable=False),
    Column("max_attempts", BigInteger, nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("worker", Text),
    Column("lease_until", Double),
    Column("completed", BigInteger, nullable=False),
    Column("total", BigInteger, nullable=False),
    Column("result", Text),
    Column("reason", Text),
    Column("owner", Text, nullable=False),
    Column("finished_at", Double),
    Column("keep_until", Double),
    Column("batch", Text),
    Column("custom_id", Text),
)

effects = Table(
    "effects",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("committed_at", Double, nullable=False),
)

failures = Table(
    "failures",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("token", BigInteger, primary_key=True),
    Column("failed_at", Double, nullable=False),
    Column("reason", Text, nullable=False),
)

lanes = Table(
    "lanes",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("priority", BigInteger, primary_key=True),
    Column("turn", BigInteger, nullable=False),
)

files = Table(
    "files",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("created_at", Double, nullable=False),
)

batches = Table(
    "batches",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("input_file", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("about", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("deadline_at", Double, nullable=False),
    Column("cancelled_at", Double),
)

OPEN = "('queued', 'waiting', 'running')"

# NOTE: every index a claim or a sweep walks is partial, so that finished jobs cost them nothing.
MIGRATIONS: dict[int, tuple[str, ...]] = {
    1: (
        """CREATE TABLE jobs (
            id TEXT NOT NULL PRIMARY KEY,
            tenant TEXT NOT NULL,
            subject TEXT NOT NULL,
            kind TEXT NOT NULL,
            state TEXT NOT NULL,
            payload TEXT NOT NULL,
            digest TEXT NOT NULL,
            idempotency_key TEXT,
            priority BIGINT NOT NULL,
            created_at DOUBLE PRECISION NOT NULL,
            run_at DOUBLE PRECISION NOT NULL,
            deadline_at DOUBLE PRECISION,
            attempts BIGINT NOT NULL,
            max_attempts BIGINT NOT NULL,
            token BIGINT NOT NULL,
            worker TEXT,
            lease_until DOUBLE PRECISION,
            completed BIGINT NOT NULL,
            total BIGINT NOT NULL,
            result TEXT,
            reason TEXT,
            owner TEXT NOT NULL,
            finished_at DOUBLE PRECISION,
            keep_until DOUBLE PRECISION
        )""",
        "CREATE UNIQUE INDEX jobs_key ON jobs (tenant, subject, idempotency_key)",
        "CREATE INDEX jobs_scope ON jobs (tenant, subject, created_at)",
        "CREATE INDEX jobs_waiting ON jobs (run_at) WHERE state = 'waiting'",
        "CREATE INDEX jobs_lease ON jobs (lease_until) WHERE state = 'running'",
        f"""CREATE INDEX jobs_deadline ON jobs (deadline_at)
            WHERE deadline_at IS NOT NULL AND state IN {OPEN}""",
        "CREATE INDEX jobs_keep ON jobs (keep_until) WHERE keep_until IS NOT NULL",
        "CREATE INDEX jobs_dead ON jobs (finished_at) WHERE state = 'dead'",
        """CREATE TABLE effects (
            job_id TEXT NOT NULL,
            key TEXT NOT NULL,
            value TEXT NOT NULL,
            token BIGINT NOT NULL,
            committed_at DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (job_id, key)
        )""",
        """CREATE TABLE failures (
            job_id TEXT NOT NULL,
            token BIGINT NOT NULL,
            failed_at DOUBLE PRECISION NOT NULL,
            reason TEXT NOT NULL,
            PRIMARY KEY (job_id, token)
        )""",
        "CREATE INDEX jobs_queued ON jobs (priority DESC, created_at, id) WHERE state = 'queued'",
        f"CREATE INDEX jobs_open ON jobs (tenant) WHERE state IN {OPEN}",
    ),
    2: (  # tenants take turns: a queued job keeps its place by a turn, no longer by its age
        "ALTER TABLE jobs ADD COLUMN turn BIGINT NOT NULL DEFAULT 0",
        "DROP INDEX jobs_queued",
        """CREATE INDEX jobs_queued ON jobs (priority DESC, turn, created_at, id)
            WHERE state = 'queued'""",
        """CREATE TABLE lanes (
            tenant TEXT NOT NULL,
            priority BIGINT NOT NULL,
            turn BIGINT NOT NULL,
            PRIMARY KEY (tenant, priority)
        )""",
        f"""UPDATE jobs SET turn = (
            SELECT count(*) FROM jobs AS before
            WHERE before.tenant = jobs.tenant AND before.priority = jobs.priority
            AND before.state IN {OPEN} AND (before.created_at < jobs.created_at
            OR before.created_at = jobs.created_at AND before.id < jobs.id)
        ) WHERE state IN {OPEN}""",
        """INSERT INTO lanes (tenant, priority, turn)
            SELECT tenant, priority, max(turn) + 1 FROM jobs GROUP BY tenant, priority""",
    ),
    3: (  # batches of jobs, and the files they come from
        "ALTER TABLE jobs ADD COLUMN batch TEXT",
        "ALTER TABLE jobs ADD COLUMN custom_id TEXT",
        "CREATE INDEX jobs_batch ON jobs (batch, created_at, id) WHERE batch IS NOT NULL",
        """CREATE TABLE files (
            id TEXT NOT NULL PRIMARY KEY,
            tenant TEXT NOT NULL,
            subject TEXT NOT NULL,
            name TEXT NOT NULL,
            purpose TEXT NOT NULL,
            content TEXT NOT NULL,
            created_at DOUBLE PRECISION NOT NULL
        )""",
        """CREATE TABLE batches (
            id TEXT NOT NULL PRIMARY KEY,
            tenant TEXT NOT NULL,
            subject TEXT NOT NULL,
            input_file TEXT NOT NULL,
            endpoint TEXT NOT NULL,
            about TEXT NOT NULL,
            created_at DOUBLE PRECISION NOT NULL,
            deadline_at DOUBLE PRECISION NOT NULL,
            cancelled_at DOUBLE PRECISION
        )""",
    ),
    4: (  # a job without a key costs the index of keys nothing
        "DROP INDEX jobs_key",
        """CREATE UNIQUE INDEX jobs_key ON jobs (tenant, subject, idempotency_key)
            WHERE idempotency_key IS NOT NULL""",
    ),
}
VERSION = max(MIGRATIONS)


def migrate(conn: Connection, to: int = VERSION) -> int:
    """Bring the database to version `to`, in the caller's transaction; returns what it had.

    Raises `ConfigError` for a database that a newer minserve has written.
    """
    if conn.dialect.name == "postgresql":  # one migrates, the others wait here; 6 is this lock
        conn.execute(text("SELECT pg_advisory_xact_lock(6, 6)"))
    conn.execute(text("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)"))
    had = conn.scalar(text("SELECT max(version) FROM schema_version")) or 0
    if had > VERSION:
        raise ConfigError(
            f"the job store has schema version {had}; this minserve knows {VERSION}",
            "use the newer minserve that wrote it",
        )
    for version in range(had + 1, to + 1):
        for statement in MIGRATIONS[version]:
            conn.execute(text(statement))
        conn.execute(text("INSERT INTO schema_version VALUES (:v)"), {"v": version})
    return had

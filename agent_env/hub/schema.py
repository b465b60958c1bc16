"""The tables of a hub's database, and the steps that bring an older database up to date."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Connection, Double, Integer, MetaData, String, Table, Text, inspect, text

from agent_env.errors import ConfigurationError

metadata = MetaData()

feed = Table(
    "feed",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
)
"""One row: the number of the last change to a release. Those who change releases lock it first."""

releases = Table(
    "releases",
    metadata,
    Column("name", String(255), primary_key=True),
    Column("version", String(255), primary_key=True),
    Column("digest", String(80), nullable=False),
    Column("card", Text, nullable=False),
    Column("launch", Text),
    Column("yanked", Text),
    Column("deprecated", Text),
    Column("owner", String(255)),
    Column("published", Double, nullable=False),
    Column("sequence", BigInteger, nullable=False),
)

leases = Table(
    "leases",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(255), nullable=False),
    Column("version", String(255), nullable=False),
    Column("digest", String(80), nullable=False),
    Column("url", Text, nullable=False),
    Column("card", Text, nullable=False),
    Column("capacity", Integer),
    Column("load", Integer, nullable=False),
    Column("registered", Double, nullable=False),
    Column("renewed", Double, nullable=False),
    Column("doubted", Double),
    Column("ended", Double),
    Column("fell_silent", Double),
    Column("superseded", Integer, nullable=False),
    Column("source", String(80)),
    Column("launch_id", String(64)),
)
"""One row an instance, under its public id: the lease's own id is not stored, so reading the database gives nobody
the right to renew or to end a lease."""

launches = Table(
    "launches",
    metadata,
    Column("release", String(600), primary_key=True),
    Column("id", String(64), nullable=False),
    Column("expires", Double, nullable=False),
    Column("ended", Integer, nullable=False),
    Column("error", Text),
)
"""Who launches which release now, and how the last launch of it ended."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE feed (id INTEGER NOT NULL PRIMARY KEY, sequence BIGINT NOT NULL)",
        "INSERT INTO feed (id, sequence) VALUES (1, 0)",
        """CREATE TABLE releases (
            name VARCHAR(255) NOT NULL, version VARCHAR(255) NOT NULL, digest VARCHAR(80) NOT NULL,
            card TEXT NOT NULL, launch TEXT, yanked TEXT, deprecated TEXT, owner VARCHAR(255),
            published DOUBLE PRECISION NOT NULL, sequence BIGINT NOT NULL, PRIMARY KEY (name, version))""",
        "CREATE INDEX releases_sequence ON releases (sequence)",
        """CREATE TABLE leases (
            id VARCHAR(32) NOT NULL PRIMARY KEY, name VARCHAR(255) NOT NULL, version VARCHAR(255) NOT NULL,
            digest VARCHAR(80) NOT NULL, url TEXT NOT NULL, card TEXT NOT NULL, capacity INTEGER,
            load INTEGER NOT NULL, registered DOUBLE PRECISION NOT NULL, renewed DOUBLE PRECISION NOT NULL,
            doubted DOUBLE PRECISION, ended DOUBLE PRECISION, fell_silent DOUBLE PRECISION, superseded INTEGER NOT NULL)""",
        "CREATE INDEX leases_name ON leases (name)",
        "CREATE INDEX leases_renewed ON leases (renewed)",
    ),
    (
        "ALTER TABLE leases ADD COLUMN source VARCHAR(80)",
        "ALTER TABLE leases ADD COLUMN launch_id VARCHAR(64)",
        """CREATE TABLE launches (
            release VARCHAR(600) NOT NULL PRIMARY KEY, id VARCHAR(64) NOT NULL, expires DOUBLE PRECISION NOT NULL,
            ended INTEGER NOT NULL, error TEXT)""",
    ),
)
"""Step n takes a database from version n to n + 1. A step that was released is never edited."""

VERSION = len(MIGRATIONS)
"""The version of the schema that this code reads and writes."""


def version_of(connection: Connection) -> int:
    """The schema version of a database; 0 when it is new."""
    if not inspect(connection).has_table("schema_version"):
        return 0
    found: int = connection.execute(text("SELECT version FROM schema_version")).scalar_one()
    return found


def migrate(connection: Connection, to: int = VERSION) -> None:
    """Brings a database to a version, inside the caller's transaction; does nothing when it is there.

    Raises `ConfigurationError` for a database that a newer release has changed.
    """
    version = version_of(connection)
    if version > VERSION:
        raise ConfigurationError(
            f"the hub's database has schema version {version}, and this release of agent-env knows up to {VERSION}; "
            f"upgrade agent-env, or point AGENT_ENV_HUB elsewhere"
        )
    if version == 0:
        connection.execute(text("CREATE TABLE schema_version (version INTEGER NOT NULL)"))
        connection.execute(text("INSERT INTO schema_version (version) VALUES (0)"))
    for step in range(version, to):
        for statement in MIGRATIONS[step]:
            connection.execute(text(statement))
        connection.execute(text("UPDATE schema_version SET version = :version"), {"version": step + 1})

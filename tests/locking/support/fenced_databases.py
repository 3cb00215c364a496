"""The databases on which the fence is tried, each isolation level by itself, with a table of sales."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import connections
from psycopg import IsolationLevel

from locking.models import Fence

ALIAS = "fenced"


@dataclass(frozen=True)
class Database:
    """A server and an isolation level."""

    vendor: str
    isolation: str = ""
    snapshot_isolation: bool = False

    def __str__(self) -> str:
        return " ".join(filter(None, [self.vendor, self.isolation, "snapshot" * self.snapshot_isolation]))


POSTGRESQL = [
    Database("postgresql", "read committed"),
    Database("postgresql", "repeatable read"),
    Database("postgresql", "serializable"),
]
MARIADB = [
    Database("mariadb", "read committed"),
    Database("mariadb", "repeatable read", snapshot_isolation=True),
    Database("mariadb", "serializable"),
    Database("mariadb", "serializable", snapshot_isolation=True),
]
REFUSED = Database("mariadb", "repeatable read")
SQLITE = Database("sqlite")


def settings_of(database: Database, folder: Path, socket: str | None) -> dict[str, Any]:
    """Return what DATABASES would have for it."""
    default = dict(connections["default"].settings_dict)
    if database.vendor == "postgresql":
        level = IsolationLevel[database.isolation.upper().replace(" ", "_")]
        return default | {"OPTIONS": default["OPTIONS"] | {"isolation_level": level}}
    rest = {name: value for name, value in default.items() if name not in ("OPTIONS", "USER", "PASSWORD")}
    if database.vendor == "sqlite":
        return rest | {"ENGINE": "django.db.backends.sqlite3", "NAME": folder / "db.sqlite3", "OPTIONS": {}}
    snapshot = "ON" if database.snapshot_isolation else "OFF"
    options = {
        "isolation_level": database.isolation,
        "init_command": f"SET SESSION innodb_snapshot_isolation = {snapshot}",
    }
    return rest | {
        "ENGINE": "django.db.backends.mysql",
        "NAME": "holdfast",
        "HOST": socket,
        "PORT": "",
        "USER": "root",
        "PASSWORD": "",
        "OPTIONS": options,
    }


@contextmanager
def registered(settings: dict[str, Any]) -> Iterator[str]:
    """Give the alias of a database that is there inside the block, with the tables it needs."""
    connections.settings[ALIAS] = {"ATOMIC_REQUESTS": False, **settings}
    try:
        with _tables(ALIAS):
            yield ALIAS
    finally:
        connections[ALIAS].close()
        del connections[ALIAS]
        del connections.settings[ALIAS]


@contextmanager
def _tables(alias: str) -> Iterator[None]:
    connection = connections[alias]
    has_fence = "locking_fence" in connection.introspection.table_names()
    with connection.schema_editor() as editor:
        if not has_fence:
            editor.create_model(Fence)
        editor.execute("CREATE TABLE sale (buyer varchar(20) NOT NULL)")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE sale")
            cursor.execute("DROP TABLE locking_fence" if not has_fence else "DELETE FROM locking_fence")


def sales(alias: str = ALIAS) -> list[str]:
    """Return who bought, as this connection sees it."""
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT buyer FROM sale ORDER BY buyer")
        return [row[0] for row in cursor.fetchall()]


def sell(buyer: str, alias: str = ALIAS) -> None:
    """Sell to `buyer`, without looking: rows that are added don't collide, so only the fence can object."""
    with connections[alias].cursor() as cursor:
        cursor.execute("INSERT INTO sale (buyer) VALUES (%s)", [buyer])

"""The triggers that make the ledger the only writer; the statements are in `inventory/sql`.

On SQLite a migration that alters one of the tables makes it again, without its triggers: create them there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

from django.db import connections

VENDORS = ("postgresql", "mysql", "sqlite")


def install(apps: Any, schema_editor: Any) -> None:
    """Create the triggers of the database's vendor; a migration calls it."""
    connection = schema_editor.connection
    for statement in _statements(connection):
        schema_editor.execute(statement, params=None)


def _statements(connection: Any) -> list[str]:
    text = files("inventory").joinpath("sql", f"{connection.vendor}.sql").read_text()
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT quote_ident(current_schema())")
            return [text.replace("{schema}", cursor.fetchone()[0])]
    if connection.vendor == "mysql":
        exact = "utf8mb4_nopad_bin" if connection.mysql_is_mariadb else "utf8mb4_0900_bin"
        text = text.replace("{collation}", exact)
    return [_without_comments(statement).strip() for statement in text.split("--;\n")]


def uninstall(apps: Any, schema_editor: Any) -> None:
    """Drop what `install` made."""
    connection = schema_editor.connection
    if connection.vendor == "postgresql":
        for name in ("apply_movements", "refuse_balances", "begin_level", "refuse_change"):
            schema_editor.execute(f"DROP FUNCTION inventory_{name}() CASCADE")
        return
    for statement in _statements(connection):
        if found := re.match(r"CREATE TRIGGER (\w+)", statement):
            schema_editor.execute(f"DROP TRIGGER {found[1]}")
    schema_editor.execute("DROP TABLE inventory_posting")


def install_take(apps: Any, schema_editor: Any) -> None:
    """Create the function that takes units of a plain item, on PostgreSQL."""
    if schema_editor.connection.vendor == "postgresql":
        text = files("inventory").joinpath("sql", "take_plain.sql").read_text()
        schema_editor.execute(text, params=None)


def uninstall_take(apps: Any, schema_editor: Any) -> None:
    """Drop what `install_take` made."""
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("DROP FUNCTION inventory_take_plain")


def _without_comments(statement: str) -> str:
    return "\n".join(line for line in statement.splitlines() if not line.startswith("--"))


def are_installed(using: str) -> bool:
    """Return whether every trigger is there, and none switched off."""
    connection = connections[using]
    if "inventory_level" not in connection.introspection.table_names():
        return False
    text = files("inventory").joinpath("sql", f"{connection.vendor}.sql").read_text()
    with connection.cursor() as cursor:
        cursor.execute(_COUNT[connection.vendor])
        return bool(cursor.fetchone()[0] >= text.count("CREATE TRIGGER"))


_COUNT = {
    "postgresql": "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'inventory\\_%' AND tgenabled <> 'D' "
    "AND tgrelid IN ('inventory_level'::regclass, 'inventory_movement'::regclass, "
    "'inventory_entry'::regclass)",
    "mysql": "SELECT count(*) FROM information_schema.triggers WHERE trigger_schema = DATABASE() "
    "AND trigger_name LIKE 'inventory\\_%'",
    "sqlite": "SELECT count(*) FROM sqlite_master WHERE type = 'trigger' AND name GLOB 'inventory_*'",
}


@contextmanager
def allow_changes(using: str, level: int = -1) -> Iterator[None]:
    """Let this transaction change the ledger, or balances of `level`, meanwhile."""
    connection = connections[using]
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT set_config('inventory.archiving', txid_current()::text, true)")
        else:
            cursor.execute("INSERT INTO inventory_posting (level_id) VALUES (%s)", [level])
        yield
        if connection.vendor == "postgresql":
            cursor.execute("SELECT set_config('inventory.archiving', '', true)")
        else:
            cursor.execute("DELETE FROM inventory_posting WHERE level_id = %s", [level])

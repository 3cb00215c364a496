"""Installing the triggers that make the ledger the only writer; the statements are in `inventory/sql`."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

VENDORS = ("postgresql", "mysql", "sqlite")


def install(apps: Any, schema_editor: Any) -> None:
    """Create the triggers of the database's vendor; a migration calls it."""
    connection = schema_editor.connection
    text = files("inventory").joinpath("sql", f"{connection.vendor}.sql").read_text()
    if connection.vendor == "postgresql":
        schema_editor.execute(text, params=None)
        return
    if connection.vendor == "mysql":
        exact = "utf8mb4_nopad_bin" if connection.mysql_is_mariadb else "utf8mb4_0900_bin"
        text = text.replace("{collation}", exact)
    for statement in text.split("--;\n"):
        schema_editor.execute(_without_comments(statement), params=None)


def uninstall(apps: Any, schema_editor: Any) -> None:
    """Drop what `install` made."""
    connection = schema_editor.connection
    if connection.vendor == "postgresql":
        for name in ("apply_movements", "refuse_balances", "begin_level", "refuse_change"):
            schema_editor.execute(f"DROP FUNCTION inventory_{name}() CASCADE")
        return
    for name in (
        "apply", "balances", "begin", "no_delete_movement", "no_update_movement", "no_delete_entry", "no_update_entry"
    ):  # fmt: skip
        schema_editor.execute(f"DROP TRIGGER inventory_{name}")
    schema_editor.execute("DROP TABLE inventory_posting")


def _without_comments(statement: str) -> str:
    return "\n".join(line for line in statement.splitlines() if not line.startswith("--"))

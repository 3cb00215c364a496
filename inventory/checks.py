"""System checks: what is wrong with `INVENTORY` or the database is said at start, never in a sale."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from inventory.conf import aliases, make_strategy, read_alias
from inventory.triggers import VENDORS, are_installed


@register("inventory")
def check_settings(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Report every mistake in `INVENTORY`, and what its strategies need."""
    found: list[CheckMessage] = []
    try:
        names = aliases()
    except ImproperlyConfigured as error:
        return [Error(str(error), id="inventory.E001")]
    for alias in names:
        try:
            entry = read_alias(alias)
            strategy = make_strategy(entry)
        except ImproperlyConfigured as error:
            found.append(Error(str(error), id="inventory.E001"))
            continue
        found += strategy.check()
        found += _check_database(entry.database, strategy.name)
        if strategy.name == "locked" and "locking" not in settings.INSTALLED_APPS:
            found.append(
                Error(
                    f"INVENTORY[{alias!r}] needs Holdfast's locks, and 'locking' isn't in INSTALLED_APPS.",
                    hint="Add it: INSTALLED_APPS += ['locking'].",
                    id="inventory.E003",
                )
            )
    return found


def _check_database(alias: str, strategy: str) -> list[CheckMessage]:
    connection = connections[alias]
    if connection.vendor not in VENDORS:
        return [
            Error(
                f"The database {alias!r} is {connection.vendor}; inventory needs PostgreSQL, MySQL 8, "
                "MariaDB or SQLite, where its triggers make the ledger the only writer of stock.",
                id="inventory.E002",
            )
        ]
    mode = connection.settings_dict.get("OPTIONS", {}).get("transaction_mode")
    if connection.vendor == "sqlite" and mode != "IMMEDIATE":
        return [
            Warning(
                f"The database {alias!r} is SQLite with deferred transactions: a sale is refused as busy "
                "where its transaction has read before another one wrote.",
                hint="DATABASES['…']['OPTIONS'] = {'transaction_mode': 'IMMEDIATE'}",
                id="inventory.W001",
            )
        ]
    return []


@register(Tags.database)
def check_triggers(databases: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Report a database without the triggers that keep balances and ledger together."""
    found: list[CheckMessage] = []
    wanted = {read_alias(alias).database for alias in aliases()}
    for alias in wanted & set(databases or ()):
        tables = connections[alias].introspection.table_names()
        if "inventory_level" in tables and not are_installed(alias):
            found.append(
                Error(
                    f"The triggers of inventory are missing in the database {alias!r}.",
                    hint="A hosted MySQL may allow none; a restore may have left them out. Migrate again.",
                    id="inventory.E006",
                )
            )
    return found

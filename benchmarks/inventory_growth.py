"""What the stock's public names cost on a filled database, and by which plans.

    python -m benchmarks.inventory_growth [--items 2000000] [--movements 20000000] [--keep]

Fills a database of its own on the checkout's PostgreSQL, calls every verb, prints the plan of each statement
and how long the verb took, and ends with status 1 where a plan reads a large table from end to end.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

LARGE = ("entry", "item", "level", "movement", "reservation")
"""Tables that grow with the shop."""

FILL = """
SET LOCAL session_replication_role = replica;
INSERT INTO inventory_location (id, code, name, priority, active) VALUES (1, 'default', '', 0, true);
INSERT INTO inventory_item (id, sku) SELECT g, 'sku-' || g FROM generate_series(1, {items}) AS g;
INSERT INTO inventory_level (id, item_id, location_id, available, reserved, committed, unavailable,
                             backorder_limit, safety_stock)
SELECT g, g, 1, 1000 - {each} / 2 - (g <= {live})::int, (g <= {live})::int,
       {each} / 2 - ({each} - 1) / 2, 0, 0, 0
  FROM generate_series(1, {items}) AS g;
INSERT INTO inventory_entry (id, cause, kind, fingerprint, of_id, actor, created_at)
SELECT round * {items} + g, 'cause-' || round * {items} + g,
       CASE WHEN round = 0 THEN 1 WHEN round % 2 = 1 THEN 2 ELSE 6 END, 0,
       CASE WHEN round > 0 AND round % 2 = 0 THEN (round - 1) * {items} + g END, '',
       now() - make_interval(days => (({each} - round) * 30)::int)
  FROM generate_series(0, {each} - 1) AS round, generate_series(1, {items}) AS g;
INSERT INTO inventory_movement (id, entry_id, level_id, source, target, quantity)
SELECT round * {items} + g, round * {items} + g, g,
       CASE WHEN round = 0 THEN 0 WHEN round % 2 = 1 THEN 1 ELSE 3 END,
       CASE WHEN round = 0 THEN 1 WHEN round % 2 = 1 THEN 3 ELSE 0 END,
       CASE WHEN round = 0 THEN 1000 ELSE 1 END
  FROM generate_series(0, {each} - 1) AS round, generate_series(1, {items}) AS g;
INSERT INTO inventory_entry (id, cause, kind, fingerprint, actor, created_at)
SELECT {each} * {items} + g, 'cart-' || g, 3, 0, '', now() FROM generate_series(1, {live}) AS g;
INSERT INTO inventory_movement (id, entry_id, level_id, source, target, quantity)
SELECT {each} * {items} + g, {each} * {items} + g, g, 1, 2, 1 FROM generate_series(1, {live}) AS g;
INSERT INTO inventory_reservation (id, entry_id, reference, state, expires_at, created_at)
SELECT gen_random_uuid(), {each} * {items} + g, 'cart-' || g, 'live', now() + interval '1 hour', now()
  FROM generate_series(1, {live}) AS g;
SET LOCAL session_replication_role = origin;
"""
"""Items that came in once, and were sold and shipped in turn; one in ten is in a cart as well."""


def fill(connection: Any, items: int, movements: int) -> None:
    """Fill the empty tables, in the current transaction."""
    text = FILL.format(items=items, each=max(2, movements // items), live=items // 10)
    with connection.cursor() as cursor:
        for statement in filter(str.strip, text.split(";\n")):
            cursor.execute(statement)
        for table in ("location", "item", "level", "entry", "movement"):
            cursor.execute(
                f"SELECT setval(pg_get_serial_sequence('inventory_{table}', 'id'), max(id)) "  # noqa: S608
                f"FROM inventory_{table}"
            )


def analyze(connection: Any) -> None:
    """Have the planner know what is there."""
    with connection.cursor() as cursor:
        for table in ("location", *LARGE):
            cursor.execute(f"ANALYZE inventory_{table}")


def verbs(stock: Any) -> dict[str, Callable[[], object]]:
    """Return a call of every public name, by what it is called."""
    from inventory import audit, reservations
    from inventory.models import Entry, Level, Movement, Reservation

    kinds = Entry.Kind
    latest = {
        kind: Entry.objects.filter(kind=kind).order_by("-pk").values_list("cause", flat=True).first()
        for kind in (kinds.SELL, kinds.SHIP)
    }
    shipped = Movement.objects.filter(entry__kind=kinds.SHIP).order_by("-pk")
    sent: Any = shipped.select_related("level__item", "entry__of")[0]
    held = stock.held(Reservation.objects.get(reference="cart-1").pk)

    def new() -> str:
        return f"bench-{uuid4().hex}"

    return {
        "available": lambda: stock.available("sku-7"),
        "available of 50": lambda: stock.available([f"sku-{n}" for n in range(1, 51)]),
        "levels": lambda: stock.levels("sku-7"),
        "receive": lambda: stock.receive("sku-7", 5, cause=new()),
        "sell": lambda: stock.sell({"sku-7": 1, "sku-8": 2}, cause=new()),
        "sell again": lambda: _caught(stock.sell, {"sku-7": 1}, cause=latest[kinds.SELL]),
        "sell too many": lambda: _caught(stock.sell, {"sku-1": 10**6}, cause=new()),
        "reserve": lambda: stock.reserve({"sku-7": 1}, seconds=60, reference="bench"),
        "held": lambda: stock.held(held.id),
        "held.extend": lambda: held.extend(7200),
        "held.sell": lambda: held.sell(cause=new()),
        "held.release": held.release,
        "expire": lambda: reservations.expire(stock.using, skip_locked=True),
        "ship": lambda: _caught(stock.ship, cause=new(), of=latest[kinds.SELL]),
        "restock": lambda: stock.restock(sent.level.item.sku, 1, cause=new(), of=sent.entry.of.cause),
        "count": lambda: stock.count("sku-7", 990, cause=new()),
        "adjust": lambda: stock.adjust("sku-7", -1, cause=new()),
        "hold_back": lambda: stock.hold_back({"sku-7": 1}, cause=new()),
        "audit of a range": lambda: list(audit.differences(Level.objects.filter(pk__range=(1, 1000)))),
    }


def _caught(call: Callable[..., object], *args: object, **kwargs: object) -> None:
    from inventory import InventoryError

    with suppress(InventoryError):
        call(*args, **kwargs)


@contextmanager
def rolled_back() -> Iterator[None]:
    """Undo what the block does."""
    from django.db import transaction

    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def plans(call: Callable[[], object]) -> list[tuple[str, str]]:
    """Return each statement of a call, undone, and its plan."""
    from django.db import connection

    found: list[tuple[str, str]] = []

    def explain(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        text = str(sql)
        if re.match(r"\s*(SELECT|UPDATE|DELETE|WITH|INSERT)\b", text) and "inventory_" in text and not many:
            with connection.connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN {text}", params)
                found.append((text, "\n".join(row[0] for row in cursor.fetchall())))
        return execute(sql, params, many, context)

    with rolled_back(), connection.execute_wrapper(explain):
        call()
    return found


def read_whole(plan: str) -> set[str]:
    """Return the large tables that a plan reads from end to end."""
    return {table for table in LARGE if re.search(rf"Seq Scan on (public\.)?inventory_{table}\b", plan)}


def scanned(call: Callable[[], object]) -> set[str]:
    """Return the large tables that a call, undone, reads whole, also in functions and triggers."""
    from django.db import connection

    def scans() -> dict[str, int]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT relname, seq_scan FROM pg_stat_xact_user_tables")
            return dict(cursor.fetchall())

    with rolled_back():
        before = scans()
        call()
        after = scans()
    return {table for table in LARGE if after[f"inventory_{table}"] > before[f"inventory_{table}"]}


def milliseconds(call: Callable[[], object], times: int = 15) -> float:
    """Return the median duration of a call."""
    taken = []
    for _ in range(times):
        with rolled_back():
            begun = time.perf_counter()
            call()
            taken.append(time.perf_counter() - begun)
    return statistics.median(taken) * 1000


def main() -> int:
    """Fill, call, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=2_000_000)
    parser.add_argument("--movements", type=int, default=20_000_000)
    parser.add_argument("--keep", action="store_true", help="leave the database, and use one that was left")
    options = parser.parse_args()
    _set_up(f"growth_{options.items}_{options.movements}", options)
    from django.db import connection

    from inventory import stock

    bad = 0
    for name, call in verbs(stock).items():
        for sql, plan in plans(call):
            whole = read_whole(plan)
            bad += bool(whole)
            print(f"-- {name}{f': READS ALL OF {whole}' if whole else ''}")
            print(f"{' '.join(sql.split())[:160]}\n{plan}\n")
        print(f"== {name}: {milliseconds(call):.2f} ms\n")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname, pg_size_pretty(pg_relation_size(oid)), reltuples::bigint FROM pg_class "
            "WHERE relname LIKE 'inventory%' AND relkind IN ('r', 'i') AND reltuples > 1000 "
            "ORDER BY pg_relation_size(oid) DESC"
        )
        for row in cursor.fetchall():
            print(*row)
    connection.close()
    return 1 if bad else 0


def _set_up(name: str, options: argparse.Namespace) -> None:
    import django
    import psycopg
    from django.conf import settings
    from django.core.management import call_command

    from config import embedded

    server = embedded.database()
    with psycopg.connect(
        host=server["HOST"], port=server["PORT"], user=server["USER"], dbname=server["NAME"], autocommit=True
    ) as administration:
        there = administration.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone()
        if there and not options.keep:
            administration.execute(f'DROP DATABASE "{name}"')
        if not there or not options.keep:
            administration.execute(f'CREATE DATABASE "{name}"')
    settings.configure(
        INSTALLED_APPS=["inventory"], USE_TZ=True, DATABASES={"default": {**server, "NAME": name}}
    )
    django.setup()
    if there and options.keep:
        return
    from django.db import connection, transaction

    call_command("migrate", verbosity=0)
    begun = time.perf_counter()
    with transaction.atomic():
        fill(connection, options.items, options.movements)
    connection.ensure_connection()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
    print(f"filled in {time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    sys.exit(main())

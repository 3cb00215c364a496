"""The lab's own products: one a race, unguarded, cleared away afterwards even if the race was killed.

A race in progress holds a session-level advisory lock in the very database its products are in: it ends with
the session, also after `kill -9`, at once and without a lease. Leftovers are products whose race holds none.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal

from django.db import DEFAULT_DB_ALIAS, DatabaseError, connection, connections, transaction

from locking import BackendUnavailable
from orders.lab.models import NamedLock, Order, OrderItem, Product
from orders.lab.strategies import STRATEGIES, get_strategy

_LOCK_CLASS = 0x6C6162 << 32
_OURS = re.compile(r"(?P<race>[0-9a-f]{8})-\d+(\.\d+)?")
_SPARE_CONNECTIONS = 5


class LabError(RuntimeError):
    """The race can't be held here; the message says why and what to do."""


@contextmanager
def race_in_progress() -> Iterator[str]:
    """Yield the id of a new race, marked as in progress; clear its products at the end, whatever happened."""
    race = secrets.token_hex(4)
    mark = connection.copy()
    try:
        with mark.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [_lock_number(race)])
        try:
            yield race
        except BaseException:
            _discard_connection()
            raise
        finally:
            clear(race)
    finally:
        mark.close()


def _discard_connection() -> None:
    """Have the next statement open a connection: an interruption may have come between one and its answer."""
    with suppress(DatabaseError):
        connection.close()
    del connections[DEFAULT_DB_ALIAS]  # whose wrapper may still be inside a transaction


def stock_up(race: str, number: str | int, strategy: str, stock: int, price: str = "1.00") -> Product:
    """Make a product of one round, unguarded, so that nothing but the strategy protects it."""
    sku = f"{race}-{number}"
    product = Product.objects.create(sku=sku, name=sku, on_hand=stock, price=Decimal(price), guarded=False)
    get_strategy(strategy).prepare([product])
    return product


def stock_up_cart(race: str, number: int, strategy: str, stock: int) -> list[Product]:
    """Make all products of one round: as many as a buyer's cart needs to show what the strategy does.

    All but the first are free of charge, so that the takings are those of the one that is counted.
    """
    further = range(2, STRATEGIES[strategy].race_products + 1)
    first = stock_up(race, f"{number}", strategy, stock)
    return [first, *(stock_up(race, f"{number}.{i}", strategy, stock, "0.00") for i in further)]


def clear(race: str) -> None:
    """Delete the products of a race with their orders and items, in the database and beside it."""
    products = Product.objects.filter(sku__startswith=f"{race}-")
    skus = [product.sku for product in products]
    for product in products:
        forget(product)
    names = [f"lab:sku:{sku}" for sku in skus]
    with transaction.atomic():
        # A fence stays forever, because a late holder may come; these products have none.
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM locking_fence WHERE name = ANY(%s)", [names])
        NamedLock.objects.filter(name__in=names).delete()
        # Two flat questions: nested ones become slow loops if the tables were empty at their ANALYZE.
        orders = set(OrderItem.objects.filter(product__sku__in=skus).values_list("order", flat=True))
        Order.objects.filter(pk__in=orders).delete()
        products.delete()


def forget(product: Product) -> None:
    """Remove what any strategy keeps outside the database for a product, where that server answers."""
    for name in STRATEGIES:
        # A server that is down must not keep the product in the database; its keys carry the race's own name.
        with suppress(BackendUnavailable):
            STRATEGIES[name]().forget([product])


def sweep() -> int:
    """Clear what killed races left behind, not what races in progress use; returns how many it cleared."""
    skus = Product.objects.values_list("sku", flat=True)
    races = {match["race"] for match in map(_OURS.fullmatch, skus) if match}
    return sum(_sweep_one(race) for race in sorted(races))


def require_connections(buyers: int) -> None:
    """Refuse a race with more buyers than the database has free connections.

    Raises:
        LabError: with the numbers and the way out.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('max_connections')::int"
            " - current_setting('superuser_reserved_connections')::int,"
            " (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')"
        )
        allowed, used = cursor.fetchone()
    free = allowed - used - _SPARE_CONNECTIONS
    if buyers > free:
        raise LabError(
            f"buyers is {buyers}, each with a connection of its own, but PostgreSQL has room for "
            f"{max(0, free)} more (max_connections leaves {allowed}, {used} in use): use fewer buyers, or "
            "raise max_connections"
        )


def _sweep_one(race: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [_lock_number(race)])
        if not cursor.fetchone()[0]:
            return False
        try:
            clear(race)
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [_lock_number(race)])
    return True


def _lock_number(race: str) -> int:
    return _LOCK_CLASS | int(race, 16)

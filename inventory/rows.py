"""The few ways in which strategies touch product rows. The only place that locks them.

Rows are locked and changed in primary-key order, always: two carts that share two products then queue up
instead of deadlocking.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Never

from django.db import OperationalError, connection, transaction
from django.db.models import F, QuerySet

from inventory.checkpoints import checkpoint
from inventory.domain import Busy, Line, MixedCurrencies, NotForSale, Shortage, SoldOut, UnknownProduct
from inventory.models import Product
from inventory.statements import prepared_cursor
from locking import LockDeadlock, LockLost, LockNotAcquired, StaleFencingToken

Products = Mapping[str, Product]

DEADLOCK = "40P01"
LOCK_NOT_AVAILABLE = "55P03"  # `lock_timeout` ended
_BUSY_STATES = frozenset({LOCK_NOT_AVAILABLE, DEADLOCK})


@contextmanager
def sale_transaction(wait: float | None = None) -> Iterator[None]:
    """One transaction for one sale, committed when the block ends; refused inside another one.

    Inside an outer transaction the commit would come later than the release of whatever lock the strategy
    holds, and a retry would run in a transaction that is already aborted.

    Args:
        wait: seconds to wait for any one row lock; None for PostgreSQL's own limit, which is none by default.

    Raises:
        Busy: a row stayed locked for `wait` seconds, or the transaction was the victim of a deadlock.
        RuntimeError: called inside an open transaction.
    """
    with busy_when_locked_out(), transaction.atomic(durable=True):
        if wait is not None:
            limit_row_waits(wait)
        yield
        _refuse_silent_rollback()
    checkpoint("committed")


@contextmanager
def busy_when_locked_out() -> Iterator[None]:
    """Say Busy for a lock that wasn't got in time or was lost, be it a row's or a distributed one."""
    try:
        yield
    except LockNotAcquired as error:
        if isinstance(error, LockDeadlock):
            checkpoint("deadlocked")
        raise Busy(str(error), retry_after=error.retry_after or 1.0) from error
    except (LockLost, StaleFencingToken) as error:  # raised before the commit only: nothing was sold
        raise Busy(str(error)) from error
    except OperationalError as error:
        state = getattr(error.__cause__, "sqlstate", None)
        if state not in _BUSY_STATES:
            raise
        if state == DEADLOCK:
            checkpoint("deadlocked")
        raise Busy(f"the stock's rows stayed locked: {str(error).splitlines()[0]}") from error


def limit_row_waits(wait: float) -> None:
    """Let no statement of this transaction wait for a row lock longer than `wait` seconds."""
    # LOCAL: it ends with the transaction and can't leak into the next user of a pooled connection.
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", [_milliseconds(wait)])


def _milliseconds(wait: float) -> str:
    return f"{max(1, round(wait * 1000))}ms"


def _refuse_silent_rollback() -> None:
    # atomic() leaves without a word when an error inside was swallowed: the sale would look done and not be
    # there.
    if transaction.get_rollback():
        raise transaction.TransactionManagementError(
            "an error inside the sale was swallowed; nothing was sold"
        )


def find_products(lines: Sequence[Line]) -> dict[str, Product]:
    """Return the products of `lines` by SKU, as they are now and unlocked; not a step of a sale.

    Raises:
        UnknownProduct: naming every SKU that there isn't.
    """
    return _by_sku(Product.objects.all(), lines)


def read_products(lines: Sequence[Line], wait: float | None = None) -> dict[str, Product]:
    """Read the stock of a sale: the products of `lines` by SKU, as they are now and unlocked.

    Args:
        lines: the cart.
        wait: seconds; no statement of this transaction waits for a row lock longer. Said in the same request.

    Raises:
        UnknownProduct: naming every SKU that there isn't.
    """
    products = _required(lines, _look([line.sku for line in lines], wait))
    _tell_read(products)
    return products


def locked_rows() -> QuerySet[Product]:
    """Return products to be filtered, locked in primary-key order when read: the one way to lock them.

    `no_key`: inserting an order item takes FOR KEY SHARE on its product, which a plain FOR UPDATE would
    block.
    """
    return Product.objects.select_for_update(no_key=True, of=("self",)).order_by("pk")


def lock_rows(product_ids: Iterable[int]) -> None:
    """Lock products by primary key, in its order, until the transaction ends."""
    list(locked_rows().filter(pk__in=set(product_ids)).values("pk"))


def lock_against_shipments(product_id: int) -> None:
    """Lock a product against everybody until the transaction ends, those included who `share_with_sales`."""
    list(Product.objects.select_for_update(of=("self",)).filter(pk=product_id).values("pk"))


def share_with_sales(product_id: int) -> int:
    """Keep `lock_against_shipments` out until the transaction ends, sales not; return the backorder limit."""
    with connection.cursor() as cursor:
        cursor.execute(_SHARE, [product_id])
        return int(cursor.fetchone()[0])


_SHARE = "SELECT backorder_limit FROM inventory_product WHERE id = %s FOR KEY SHARE"


def lock_products(lines: Sequence[Line]) -> dict[str, Product]:
    """Read the stock of a sale with the products' rows locked until the transaction ends.

    Raises:
        UnknownProduct: naming every SKU that there isn't.
    """
    checkpoint("waiting")
    products = _by_sku(locked_rows(), lines)
    checkpoint("locked")
    _tell_read(products)
    return products


def _tell_read(products: Products) -> None:
    checkpoint("read", on_hand={sku: product.on_hand for sku, product in products.items()})


def _by_sku(products: QuerySet[Product], lines: Sequence[Line]) -> dict[str, Product]:
    return _required(lines, _found(products, (line.sku for line in lines)))


def _required(lines: Sequence[Line], found: dict[str, Product]) -> dict[str, Product]:
    missing = [line.sku for line in lines if line.sku not in found]
    if missing:
        raise UnknownProduct(missing)
    if refusal := cannot_be_ordered(lines, found):
        raise refusal
    return found


def cannot_be_ordered(lines: Sequence[Line], products: Products) -> NotForSale | MixedCurrencies | None:
    """Return why these products can't be an order whatever there is of them, None where they can."""
    chosen = {line.sku: products[line.sku] for line in lines}
    if inactive := [sku for sku, product in chosen.items() if not product.active]:
        return NotForSale(inactive)
    return mixed_currencies(lines, products)


def mixed_currencies(lines: Iterable[Line], products: Products) -> MixedCurrencies | None:
    """Return why these lines can't have one total, None where their prices are in one currency."""
    currencies = {line.sku: products[line.sku].currency for line in lines}
    return MixedCurrencies(currencies) if len(set(currencies.values())) > 1 else None


def _found(products: QuerySet[Product], skus: Iterable[str]) -> dict[str, Product]:
    return {product.sku: product for product in products.filter(sku__in=set(skus)).order_by("pk")}


def in_key_order(lines: Iterable[Line], products: Products) -> list[tuple[Product, int]]:
    """Return `(product, quantity)` of each line in primary-key order: the order in which rows are changed."""
    pairs = [(products[line.sku], line.quantity) for line in lines]
    return sorted(pairs, key=lambda pair: pair[0].pk)


def decide(lines: Iterable[Line], products: Products) -> None:
    """Raise SoldOut, with every short line, unless `products` as read have enough for each line."""
    shortages = find_shortages(lines, products)
    if shortages:
        raise sold_out(shortages, products)
    checkpoint("decided")


def sold_out(shortages: Sequence[Shortage], products: Products) -> SoldOut:
    """Return the refusal for `shortages`, with what the products as read tell about reservations."""
    return SoldOut(shortages, promised=any(products[short.sku].reserved for short in shortages))


_SUBTRACT_MANY = """
UPDATE inventory_product AS product SET on_hand = on_hand - taken.units, version = version + 1
FROM unnest(%s::bigint[], %s::integer[]) AS taken (id, units) WHERE product.id = taken.id
"""


# This is all that a refusal costs, and the ORM takes longer to write it than the server to answer.
_COLUMNS = [field.attname for field in Product._meta.concrete_fields]
_READ = f"SELECT {', '.join(_COLUMNS)} FROM inventory_product WHERE sku = ANY(%s)"  # noqa: S608
_READ_AND_LIMIT = _READ.replace(" FROM", ", set_config('lock_timeout', %s, true) FROM")


def read_those_there_are(skus: Iterable[str]) -> dict[str, Product]:
    """Return the products of `skus` that there are, as they are now and unlocked."""
    products = _look(skus)
    _tell_read(products)
    return products


def _look(skus: Iterable[str], wait: float | None = None) -> dict[str, Product]:
    with prepared_cursor() as cursor:
        if wait is None:
            cursor.execute(_READ, [list(skus)])
        else:
            cursor.execute(_READ_AND_LIMIT, [_milliseconds(wait), list(skus)])
        rows = [row[: len(_COLUMNS)] for row in cursor.fetchall()]
    found = [Product.from_db(connection.alias, _COLUMNS, row) for row in rows]
    return {product.sku: product for product in found}


def lock_those_there_are(skus: Iterable[str]) -> dict[str, Product]:
    """Lock the rows of `skus` until the transaction ends, and return those that there are."""
    products = _found(locked_rows(), skus)
    checkpoint("locked")
    _tell_read(products)
    return products


def subtract_many(taken: Iterable[tuple[int, int]]) -> None:
    """Take units from rows that this transaction has locked, given as pairs of key and units."""
    pairs = list(taken)
    if pairs:
        with connection.cursor() as cursor:
            cursor.execute(_SUBTRACT_MANY, [[pk for pk, _ in pairs], [units for _, units in pairs]])
        checkpoint("written")


def find_shortages(lines: Iterable[Line], products: Products) -> list[Shortage]:
    """Return the lines for which `products` as read have too little."""
    return [
        Shortage(line.sku, line.quantity, max(0, products[line.sku].available))
        for line in lines
        if products[line.sku].available < line.quantity
    ]


def save_all(lines: Sequence[Line], products: Products) -> None:
    """Write back what was computed in memory: right under a lock that holds, else a lost update."""
    for product, quantity in in_key_order(lines, products):
        product.on_hand -= quantity
        product.version = F("version") + 1
        product.save(update_fields=["on_hand", "version"])
    checkpoint("written")


_SUBTRACT = """
UPDATE inventory_product SET on_hand = on_hand - %s, version = version + 1
 WHERE id = %s AND on_hand >= reserved - backorder_limit + %s
"""


def subtract(product: Product, quantity: int) -> bool:
    """Take `quantity` units in one conditional UPDATE; False, and nothing changed, when there are fewer."""
    with prepared_cursor() as cursor:
        cursor.execute(_SUBTRACT, [quantity, product.pk, quantity])
        return bool(cursor.rowcount == 1)


def refuse(lines: Sequence[Line], taken: Iterable[tuple[Product, int]] = ()) -> Never:
    """Refuse the order, with the stock as it is now.

    Args:
        lines: of the order.
        taken: what this transaction has taken already. It goes back with it, so those units aren't missing.

    Raises:
        SoldOut: naming the short lines.
        Busy: there is enough again, so it isn't sold out.
    """
    products = find_products(lines)
    for product, quantity in taken:
        products[product.sku].on_hand += quantity
    shortages = find_shortages(lines, products)
    if shortages:
        raise sold_out(shortages, products)
    raise Busy("stock came back while the order was refused", retry_after=0)

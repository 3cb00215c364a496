"""What a strategy is, one way to sell a cart, right or wrong, and the steps that all of them are made of.

Sound strategies lock and change rows in primary-key order: two carts that share products then queue up
instead of deadlocking.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import ClassVar, Never
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, OperationalError, connection, transaction
from django.db.models import F

from locking import LockDeadlock, LockError, LockLost, LockNotAcquired, StaleFencingToken, get_lock
from locking.signals import LockEvent, Observer, observe, stop_observing
from orders.lab.cart import Busy, Cart, SoldOut, required, shortages
from orders.lab.checkpoints import checkpoint
from orders.lab.models import GUARD, Order, OrderItem, Product

Products = Mapping[str, Product]

DEADLOCK, LOCK_NOT_AVAILABLE = "40P01", "55P03"


class Strategy(ABC):
    """One idea of how to sell. The docstring of each tells Idea, Interleaving, Verdict and Cost."""

    name: ClassVar[str]
    """How it is called in the lab and in the orders' rows."""

    sound: ClassVar[bool]
    """It never sells more than there is, no matter who comes in between."""

    sound_across_processes: ClassVar[bool] = True
    """It stays sound when its buyers come from several processes."""

    race_products: ClassVar[int] = 1
    """Products in the cart of each buyer of the race; some faults need two."""

    late_at: ClassVar[str] = "decided"
    """The checkpoint at which a fault of the lab makes a holder late."""

    wait: ClassVar[float] = 10.0
    """Seconds to wait for a busy stock before the answer is Busy."""

    lock_alias: ClassVar[str] = "default"
    """Whose locks it takes: an alias of `LOCKING`."""

    lock_setting: ClassVar[str] = ""
    """The environment variable that makes that alias; none for `default`, which is always there."""

    @abstractmethod
    def sell(self, cart: Cart) -> UUID:
        """Take the lines from the stock and record the order, all or nothing, committed on return.

        Returns:
            The order's id.

        Raises:
            SoldOut: not enough stock.
            Busy: the wait ran out; a later try may succeed.
            UnknownProduct: a line names a product that there isn't.
        """

    def prepare(self, products: Iterable[Product]) -> None:  # noqa: B027 - most have nothing to prepare
        """Set up what the strategy keeps outside the products' rows, from the database."""

    def forget(self, products: Iterable[Product]) -> None:  # noqa: B027 - most have nothing to forget
        """Remove what the strategy keeps outside the database for `products`."""

    def reconcile(self, older_than: float = 30.0) -> int:
        """Settle what dead buyers left, by asking the database for their orders; return how many.

        Args:
            older_than: seconds; what is younger may belong to a buyer that is still at work.
        """
        return 0

    @classmethod
    def unconfigured(cls) -> str | None:
        """Return what the settings lack for this strategy to sell; None when nothing. Asks no server."""
        if not cls.lock_setting or cls.lock_alias in settings.LOCKING:
            return None
        return f"LOCKING has no alias {cls.lock_alias!r}; set {cls.lock_setting} to have one"

    @classmethod
    def unavailable(cls) -> str | None:
        """Return why this strategy can't sell here now, such as a server that is down; None: it can."""
        if cls.lock_setting and not cls.unconfigured():
            try:
                get_lock("availability", backend=cls.lock_alias).locked()
            except (LockError, ImportError) as error:
                return str(error)
        return cls.unconfigured()

    checkpoint = staticmethod(checkpoint)
    """A named point at which a test, the race or the step mode may look, wait, or stop."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Open one transaction per sale, committed when the block ends; refuse inside another one.

        Raises:
            Busy: a row stayed locked for `wait` seconds, or the transaction was the victim of a deadlock.
            SoldOut: the table's CHECK has refused a stock below zero.
            RuntimeError: called inside an open transaction.
        """
        with busy_when_locked_out(), transaction.atomic(durable=True):
            # LOCAL: it ends with the transaction and can't leak into the next user of a pooled connection.
            with connection.cursor() as cursor:
                cursor.execute("SELECT set_config('lock_timeout', %s, true)", [f"{self.wait * 1000:.0f}ms"])
            yield

    def read(self, cart: Cart) -> Products:
        """Read the stock of a sale: its products by SKU, as they are now and unlocked."""
        return self._seen(find_products(cart.skus))

    def lock(self, skus: Iterable[str]) -> Products:
        """Read products with their rows locked until the transaction ends."""
        wanted = list(skus)
        locks = {sku: f"row {sku}" for sku in wanted}
        self.checkpoint("waiting", locks=locks)
        # `no_key`: inserting an order item takes FOR KEY SHARE on its product, which FOR UPDATE would block.
        rows = Product.objects.select_for_update(no_key=True).filter(sku__in=wanted)
        found = required(wanted, {product.sku: product for product in rows.order_by("pk")})
        self.checkpoint("locked", locks=locks)
        return self._seen(found)

    def _seen(self, products: Products) -> Products:
        self.checkpoint("read", on_hand={sku: product.on_hand for sku, product in products.items()})
        return products

    def decide(self, cart: Cart, products: Products) -> None:
        """Raise SoldOut, with every short line, unless `products` as read have enough for each line."""
        if short := shortages(cart.wanted, {sku: product.on_hand for sku, product in products.items()}):
            raise SoldOut(short)
        self.checkpoint("decided")

    def save(self, cart: Cart, products: Products) -> None:
        """Write back what was computed in memory: right under a lock that holds, else a lost update."""
        for product, units in in_key_order(cart, products):
            product.on_hand -= units
            product.version = F("version") + 1
            product.save(update_fields=["on_hand", "version"])
        self.checkpoint("written")

    def take(self, cart: Cart, products: Products) -> None:
        """Subtract what is still there: the database's last word behind a lock that may not have held.

        Raises:
            SoldOut: there are fewer units than the strategy had read.
        """
        for product, units in in_key_order(cart, products):
            if not subtract(product, units):
                self.checkpoint("second_line")
                refuse(cart, product)
        self.checkpoint("written")

    def record(self, cart: Cart, products: Products) -> UUID:
        """Write order and items in the current transaction, and return the order's id."""
        total = sum(products[sku].price * units for sku, units in cart.wanted.items())
        order = Order.objects.create(pk=cart.id, strategy=self.name, total=total)
        OrderItem.objects.bulk_create(
            OrderItem(order=order, product=products[sku], quantity=units, unit_price=products[sku].price)
            for sku, units in cart.wanted.items()
        )
        self.checkpoint("recorded")
        transaction.on_commit(partial(self.checkpoint, "committed"))
        return order.pk


@contextmanager
def busy_when_locked_out() -> Iterator[None]:
    """Say Busy for a lock that wasn't acquired in time or was lost, be it a row's or a distributed one."""
    try:
        yield
    except LockNotAcquired as error:
        if isinstance(error, LockDeadlock):
            checkpoint("deadlocked")
        raise Busy(str(error), retry_after=error.retry_after or 1.0) from error
    except (LockLost, StaleFencingToken) as error:  # raised before the commit only: nothing was sold
        checkpoint("stale_token" if isinstance(error, StaleFencingToken) else "lost")
        raise Busy(str(error)) from error
    except IntegrityError as error:
        if GUARD not in str(error):
            raise
        checkpoint("second_line")
        raise SoldOut([]) from error
    except OperationalError as error:
        state = getattr(error.__cause__, "sqlstate", None)
        if state not in (DEADLOCK, LOCK_NOT_AVAILABLE):
            raise
        if state == DEADLOCK:
            checkpoint("deadlocked")
        raise Busy(f"the stock's rows stayed locked: {str(error).splitlines()[0]}") from error


class _Grants(Observer):
    """Passes a checkpoint at each grant of a lock inside its own block of `grants_marked`."""

    def happened(self, event: LockEvent) -> None:
        if event.outcome == "acquired" and _marking.get() is self:
            checkpoint("locked", token=event.token, ttl=event.ttl)


_marking: ContextVar[_Grants | None] = ContextVar("grants_marked", default=None)


@contextmanager
def grants_marked() -> Iterator[None]:
    """Pass the checkpoint `locked` at the grant, where `locking` begins the transaction right after it."""
    grants = _Grants()
    observe(grants)
    token = _marking.set(grants)
    try:
        yield
    finally:
        _marking.reset(token)
        stop_observing(grants)


def find_products(skus: Iterable[str]) -> dict[str, Product]:
    """Return products by SKU, as they are now and unlocked; UnknownProduct names those that there aren't."""
    wanted = list(skus)
    return required(wanted, {product.sku: product for product in Product.objects.filter(sku__in=wanted)})


def in_key_order(cart: Cart, products: Products) -> list[tuple[Product, int]]:
    """Return `(product, units)` of each line in primary-key order: the order in which rows are changed."""
    pairs = [(products[sku], units) for sku, units in cart.wanted.items()]
    return sorted(pairs, key=lambda pair: pair[0].pk)


def subtract(product: Product, units: int) -> bool:
    """Take units in one conditional UPDATE; False, and nothing changed, when there are fewer."""
    enough = Product.objects.filter(pk=product.pk, on_hand__gte=units)
    return enough.update(on_hand=F("on_hand") - units, version=F("version") + 1) == 1


def refuse(cart: Cart, short: Product) -> Never:
    """Refuse a cart because of the product whose conditional UPDATE changed nothing.

    Raises:
        SoldOut: naming the product. Busy: there is enough of it again, so it isn't sold out.
    """
    left = Product.objects.get(pk=short.pk).on_hand
    if lines := shortages({short.sku: cart.wanted[short.sku]}, {short.sku: left}):
        raise SoldOut(lines)
    raise Busy("stock came back while the order was refused", retry_after=0)


def lock_names(strategy: Strategy, cart: Cart) -> list[str]:
    """Return the names of the locks of a sale, one per product."""
    return [f"lab:sku:{sku}" for sku in cart.skus]

"""What a strategy is: one way to sell the lines of an order, right or wrong."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from uuid import UUID, uuid4

from django.conf import settings

from inventory.domain import Line
from inventory.models import Product
from inventory.progress import SaleProgress
from locking import LockError, get_lock


def _not_given(products: Mapping[str, Product]) -> None:
    raise TypeError("this sale cannot take units by itself; the sales that `orders.services` makes can")


@dataclass(frozen=True, slots=True)
class Sale:
    """What is to be sold.

    Attributes:
        lines: merged and sorted by SKU. record: writes order, items and movements in the current transaction,
            given the products by SKU. A strategy that tries again in a new transaction calls it again.
        take_and_record: takes the lines' units, where there are enough, and does what `record` does: one
            statement, for strategies that have decided under a lock. When there are fewer units than they
            have read, the lock did not hold, and the sale is refused.
        id: the order's, chosen before anything is taken: anyone who keeps a ledger beside the database asks
            the database by it whether the sale was made.
        basket: the lines as the buyer wrote them, for the strategy that gets their order wrong.
        receipt: what `record_many` takes one of for each sale; nothing that a strategy looks into.
        record_many: writes many sales at once, the same function for all: given their receipts and the
            products of all by SKU, it writes one statement into the current transaction (PostgreSQL), so the
            batch lives or dies as one. A sale that can't be (its customer's limit, a repeated idempotency
            key) is left out, neighbours unharmed; the answer has its error by the sale's id, and the strategy
            must give its units back in the same transaction. It makes no checkpoint.
        sell_many: takes the units and writes the orders of many sales at once, in one statement outside any
            transaction, the same function for all: given their receipts, the products of all by SKU as they
            were read, and the seconds to wait for a row. It raises IntegrityError or DataError, with nothing
            done, when anything isn't as it was read or one of the sales can't be.
        progress: whether its rows were written and committed; anyone who writes them says so.
    """

    lines: tuple[Line, ...]
    record: Callable[[Mapping[str, Product]], None]
    take_and_record: Callable[[Mapping[str, Product]], None] = _not_given
    id: UUID = field(default_factory=uuid4)
    basket: tuple[Line, ...] = ()
    receipt: Any = None
    record_many: Callable[[Sequence[Any], Mapping[str, Product]], dict[UUID, Exception]] | None = None
    sell_many: Callable[[Sequence[Any], Mapping[str, Product], float], None] | None = None
    progress: SaleProgress = field(default_factory=SaleProgress)


class Strategy(ABC):
    """One idea of how to sell. The docstring of each tells Idea, Interleaving, Verdict and Cost."""

    name: ClassVar[str]
    """How it is called in settings, in the lab and in the orders' rows."""

    sound: ClassVar[bool]
    """It never sells more than there is, no matter who comes in between."""

    sound_across_processes: ClassVar[bool] = True
    """It stays sound when its buyers come from several processes."""

    keeps_stock: ClassVar[bool] = False
    """It keeps a copy of the stock outside the database, which a delivery makes out of date."""

    race_products: ClassVar[int] = 1
    """Products in the cart of each buyer of the race; some faults need two."""

    wait: ClassVar[float] = 10.0
    """Seconds to wait for a busy stock before the answer is Busy."""

    lock_alias: ClassVar[str] = "default"
    """Whose locks it takes: an alias of `LOCKING`."""

    lock_setting: ClassVar[str] = ""
    """The environment variable that makes that alias; none for `default`, which is always there."""

    @classmethod
    def unconfigured(cls) -> str | None:
        """Return what the settings lack for this strategy to sell; None when nothing. Asks no server."""
        if not cls.lock_setting or cls.lock_alias in settings.LOCKING:
            return None
        return f"LOCKING has no alias {cls.lock_alias!r}; set {cls.lock_setting} to have one"

    @classmethod
    def unavailable(cls) -> str | None:
        """Return why this strategy can't sell here now, such as a server that is down; None: it can."""
        return cls.unconfigured() or (_outage(cls.lock_alias) if cls.lock_setting else None)

    @abstractmethod
    def sell(self, sale: Sale) -> None:
        """Take the lines from the stock and record the sale, all or nothing, committed on return.

        Raises:
            SoldOut: not enough stock.
            Busy: the wait ran out; a later try may succeed.
            UnknownProduct: a line names a product that there isn't.
        """

    def prepare(self, products: Iterable[Product]) -> None:  # noqa: B027 - most have nothing to prepare
        """Set up what the strategy keeps outside the database for `products`, from the database."""

    def forget(self, products: Iterable[Product]) -> None:  # noqa: B027 - most have nothing to forget
        """Remove what the strategy keeps outside the products' rows for `products`."""

    def reconcile(self, older_than: float = 30.0) -> Reconciled:
        """Settle what dead buyers left, by asking the database whether their orders exist; safe at any time.

        Args:
            older_than: seconds; what is younger may belong to a buyer that is still at work, and is left.

        Raises:
            BackendUnavailable: what has to be settled can't be read now; call it again later.
        """
        return Reconciled()

    def drift(self, products: Iterable[Product]) -> dict[str, int]:
        """Return by SKU how many units a copy outside the database has too many (or, negative, too few).

        Sales under way are counted as what they will be. Exact while nobody sells; a glimpse otherwise.
        """
        return {}


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What a reconciliation did: sales found `settled` (there is an order), `voided` (there is none), and
    copies of stock `rebuilt` because they didn't agree with the database.
    """

    settled: int = 0
    voided: int = 0
    rebuilt: int = 0


def _outage(alias: str) -> str | None:
    """Return why the locks of `alias` can't be had at the moment; asks its servers."""
    try:
        get_lock("is-anyone-there", backend=alias).locked()
    except (LockError, ImportError) as error:
        return str(error)
    return None


def lock_names(strategy: Strategy, sale: Sale) -> list[str]:
    """Return the names of the locks of a sale, one a product."""
    return [f"sku:{line.sku}" for line in sale.lines]

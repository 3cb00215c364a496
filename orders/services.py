"""The one way to place an order."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from django.conf import settings
from django.db import IntegrityError

from inventory import reservations
from inventory.checkpoints import checkpoint
from inventory.domain import LimitReached, Line, SoldOut, merge_in_order
from inventory.low_stock import notice_low_stock
from inventory.models import Product
from inventory.progress import CONNECTION_ERRORS, DatabaseUnavailable, OutcomeUnknown
from inventory.rows import refuse
from inventory.segments import is_short
from inventory.services import gather
from inventory.sold_out_memory import sold_out_memory
from inventory.strategies import Sale, Strategy, get_strategy
from orders.models import Order
from orders.order_writer import ClientKey, Receipt, sell_many, take_and_write, write_many

logger = logging.getLogger(__name__)

_LAST_DEFENCE = ("product_on_hand_not_negative", "product_reserved_is_on_hand")


def checkout(
    lines: Iterable[Line],
    strategy: str | None = None,
    *,
    customer: str = "",
    key: ClientKey | None = None,
) -> Order:
    """Sell `lines` and return the order, committed.

    Args:
        lines: the cart; duplicates are merged, a generator is consumed once.
        strategy: the name of a strategy; None for what the products or `settings.CHECKOUT_STRATEGY` say.
        customer: who buys; needed for products with a limit a customer.
        key: under which the client may repeat the request; written with the order.

    Raises:
        InvalidCart: the cart can't be an order; nothing was asked of any server.
        UnknownStrategy: no strategy has that name.
        UnknownProduct: a line names a product that there isn't.
        SoldOut: not enough stock; every short line is named.
        LimitReached: the customer may not have so many.
        Busy: the stock was busy for too long; try again.
        RepeatedKey: the key has its answer already, and nothing was written.
        BackendUnavailable: the strategy's lock server or stock server doesn't answer.
        DatabaseUnavailable: the database failed; nothing was ordered.
        OutcomeUnknown: the database failed in COMMIT; nobody knows whether there is an order.

    Example:
        >>> checkout([Line("mug", 2), Line("pen", 1)], strategy="row_lock")  # doctest: +SKIP
        <Order: 0b6f…>
    """
    return place(lines, strategy, customer=customer, key=key).order


def place(
    lines: Iterable[Line],
    strategy: str | None = None,
    *,
    customer: str = "",
    key: ClientKey | None = None,
    scope: str = "",
) -> Receipt:
    """`checkout` that returns the order's receipt, which has the answer to the client as well.

    Args:
        scope: the authenticated caller whose order it is; empty: anybody's who knows its id.
    """
    basket = merge_in_order(lines)
    cart = tuple(sorted(basket))
    receipt = Receipt(cart, "", customer, _payment_window(), key, scope)
    with _remembering(cart), _outcome_of(receipt):
        seller = get_strategy(_strategy_of(cart) if strategy is None else strategy)
        receipt.strategy = seller.name
        sale = _sale(receipt, basket)
        # A strategy whose copy of the stock refuses without asking the database relies on the sweep.
        refusals = (LimitReached,) if seller.keeps_stock else (SoldOut, LimitReached)
        _despite_overdue(cart, partial(_despite_spreading, partial(_sell, seller, sale)), refusals)
    tell_low_stock(receipt)
    return receipt


@contextmanager
def _remembering(cart: tuple[Line, ...]) -> Iterator[None]:
    """Refuse a cart that is known to be sold out, and have a refusal of the block remembered."""
    if known := sold_out_memory.shortages(cart):
        raise SoldOut(known, promised=False)
    try:
        yield
    except SoldOut as refused:
        sold_out_memory.watch(shortage.sku for shortage in refused.shortages)
        raise


@contextmanager
def _outcome_of(receipt: Receipt) -> Iterator[None]:
    """Decide what an error of the block says about the order: once, here, where it is known how far that was.

    Raises:
        DatabaseUnavailable, OutcomeUnknown: for the database's errors; any other one is left as it is. After
            the commit nothing is raised: the order stands, whatever fails behind it.
    """
    try:
        yield
    except Exception as error:
        if receipt.progress.committed:
            logger.exception("order %s is placed; what came after its commit failed", receipt.id)
        elif isinstance(error, OutcomeUnknown) or not isinstance(error, CONNECTION_ERRORS):
            raise
        elif receipt.progress.is_unknown_after(error):
            raise OutcomeUnknown(f"the database failed while order {receipt.id} was committed") from error
        else:
            raise DatabaseUnavailable("the database failed; nothing was ordered") from error


def tell_low_stock(receipt: Receipt) -> None:
    """Look whether a product of a committed order runs low. The order stands, whatever comes of that."""
    if receipt.watched:
        try:
            notice_low_stock(receipt.watched)
        except Exception:  # not the database alone fails here: whoever is told does, too
            logger.exception("low stock was not told after order %s; the task will", receipt.id)


def checkout_reserved(
    basket: uuid.UUID, *, customer: str = "", key: ClientKey | None = None, scope: str = ""
) -> Receipt:
    """Sell what `inventory.reservations.reserve` promised to `basket`, and return the receipt.

    Args:
        basket: what `reserve` returned. customer: who buys; empty: who reserved. key, scope: as for `place`.

    Raises:
        ReservationGone: it expired, was released or used. LimitReached, RepeatedKey, Busy: see `checkout`.
        MixedCurrencies: its prices are in several currencies by now; it stays as it is.
    """
    receipt = Receipt((), "reservation", customer, _payment_window(), key, scope)
    with _outcome_of(receipt):
        receipt.cart = reservations.find(basket).lines
        receipt.customer = customer or reservations.customer_of(basket)
        use = partial(reservations.use, basket, _Record(receipt), wait=Strategy.wait)
        _despite_overdue(receipt.cart, use, (LimitReached,))
    tell_low_stock(receipt)
    return receipt


def _sale(receipt: Receipt, basket: tuple[Line, ...]) -> Sale:
    return Sale(
        lines=receipt.cart,
        record=_Record(receipt),
        take_and_record=partial(_take_and_record, receipt),
        id=receipt.id,
        basket=basket,
        receipt=receipt,
        record_many=write_many,
        sell_many=sell_many,
        progress=receipt.progress,
    )


def _despite_overdue(
    cart: Iterable[Line], sell: Callable[[], None], refusals: tuple[type[Exception], ...]
) -> None:
    """Sell, and again as long as overdue reservations of the cart's products stand in the way.

    They end in the moment of their expiry, whether somebody has swept them up or not. One transaction ends so
    many of them; what is refused then may need, or be kept back by, those that are left. Where there is none
    to end, another buyer may just have ended it: so it is decided once more.
    """
    is_last = False
    while True:
        try:
            return sell()
        except refusals as refused:
            if isinstance(refused, SoldOut) and not refused.promised:
                raise
            if not reservations.expire_overdue(_skus(cart), wait=Strategy.wait):
                if is_last or _stands(refused):
                    raise
                is_last = True


def _stands(refused: Exception) -> bool:
    """Return whether it is sold out by now, too: units may have come back since the look."""
    return not isinstance(refused, SoldOut) or is_short(refused.shortages)


def _despite_spreading(sell: Callable[[], None]) -> None:
    """Sell, and once more when what is short lies where another strategy has spread it.

    Only where a product is sold by several: elsewhere a refusal need not ask for that.
    """
    try:
        sell()
    except SoldOut as refused:
        several = settings.PRODUCT_STRATEGIES or settings.DEBUG  # with DEBUG on the buyer may choose
        if not several or not gather(refused.shortages, Strategy.wait):
            raise
        sell()


def _sell(seller: Strategy, sale: Sale) -> None:
    try:
        seller.sell(sale)
    except IntegrityError as error:
        if _constraint(error) not in _LAST_DEFENCE:
            raise
        # A broken strategy on guarded stock: the last line of defence is the database's own CHECK.
        checkpoint("second_line")
        refuse(sale.lines)


class _Record:
    """Writes one order; what can't be is raised, and the transaction undoes the rest."""

    def __init__(self, receipt: Receipt) -> None:
        self._receipt = receipt

    def __call__(self, products: Mapping[str, Product]) -> None:
        for error in write_many([self._receipt], products).values():
            raise error
        checkpoint("recorded", order=self._receipt.id)


def _take_and_record(receipt: Receipt, products: Mapping[str, Product]) -> None:
    take_and_write(receipt, products)
    checkpoint("written")
    checkpoint("recorded", order=receipt.id)


def _skus(cart: Iterable[Line]) -> list[str]:
    return [line.sku for line in cart]


def _strategy_of(cart: Iterable[Line]) -> str:
    """Return the strategy that every product of the cart asks for, or else the setting's.

    A cart whose products disagree is sold by the setting's: one transaction can't be two strategies.
    """
    if not settings.PRODUCT_STRATEGIES:
        return str(settings.CHECKOUT_STRATEGY)
    wished = set(Product.objects.filter(sku__in=_skus(cart)).values_list("strategy", flat=True))
    only = wished.pop() if len(wished) == 1 else ""
    return only or str(settings.CHECKOUT_STRATEGY)


def _payment_window() -> float | None:
    return settings.PAYMENT_WINDOW or None


def _constraint(error: IntegrityError) -> str | None:
    diagnostics = getattr(error.__cause__, "diag", None)
    return getattr(diagnostics, "constraint_name", None)

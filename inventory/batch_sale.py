"""Selling to many in one commit: refused by a look, sold by one statement; failing that, under row locks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TypeVar
from uuid import UUID

from django.db import DataError, IntegrityError, transaction

from inventory.checkpoints import checkpoint
from inventory.domain import Shortage, SoldOut, UnknownProduct
from inventory.group_commit import Ticket
from inventory.leading_connection import leading_connection
from inventory.models import Product
from inventory.rows import (
    busy_when_locked_out,
    cannot_be_ordered,
    lock_those_there_are,
    read_those_there_are,
    sale_transaction,
    sold_out,
    subtract_many,
)
from inventory.strategies.base import Sale, Strategy

F = TypeVar("F")


def sell_batch(batch: list[Ticket]) -> None:
    """Sell to each of `batch`, or say why not in its `error`; committed on return.

    A look at the stock, which refuses without a transaction, and one statement for all who can be served.
    When that fails, because the stock isn't as it was or one of them can't be, nothing is done yet: then the
    rows are locked first, and each is decided about; and when the database refuses even that for the sake of
    one of them, each is tried alone.

    Raises:
        Busy: the rows stayed locked; nothing was sold. DatabaseError: the outcome may be unknown.
    """
    with leading_connection():
        try:
            _sell_at_once(batch)
        except (IntegrityError, DataError):
            _sell_carefully(batch)


def _sell_at_once(batch: list[Ticket]) -> None:
    products = read_those_there_are(_skus(batch))
    served = _decide(batch, products, _left(products))
    if served:
        checkpoint("decided")
        sell = _given(served[0].sale.sell_many, "sell_many")
        with busy_when_locked_out():
            sell([ticket.sale.receipt for ticket in served], products, Strategy.wait)
    _settle(batch)
    checkpoint("committed")


def _sell_carefully(batch: list[Ticket]) -> None:
    try:
        _sell(batch)
    except (IntegrityError, DataError):
        if len(batch) == 1:
            raise
        for ticket in batch:
            _sell_alone(ticket)


def _sell_alone(ticket: Ticket) -> None:
    try:
        _sell([ticket])
    except Exception as error:
        ticket.error = error


def _sell(batch: list[Ticket]) -> None:
    with sale_transaction(Strategy.wait), _rolled_back_on_failure(batch):
        transaction.on_commit(partial(_settle, batch))
        products = lock_those_there_are(_skus(batch))
        left = _left(products)
        undecided = batch
        while undecided:
            undecided = _record(undecided, products, left)
        taken = [(products[sku].pk, products[sku].available - units) for sku, units in left.items()]
        subtract_many([(pk, units) for pk, units in taken if units])


@contextmanager
def _rolled_back_on_failure(batch: list[Ticket]) -> Iterator[None]:
    """Note that a transaction whose block fails sends no COMMIT, whatever it has written."""
    try:
        yield
    except BaseException:
        for ticket in batch:
            ticket.sale.progress.restart()
        raise


def _record(batch: list[Ticket], products: Mapping[str, Product], left: dict[str, int]) -> list[Ticket]:
    """Decide about each cart and write the orders; return who has to be decided about again.

    Who was sold out may be served after all when another one's order can't be written, because of its
    customer's limit or its repeated key, and its units are free again.
    """
    sold = _decide(batch, products, left)
    refused = _written(sold, products)
    for ticket in sold:
        ticket.error = refused.get(ticket.sale.id)
        for line in ticket.sale.lines if ticket.error else ():
            left[line.sku] += line.quantity
    return [ticket for ticket in batch if refused and isinstance(ticket.error, SoldOut)]


def _written(sold: list[Ticket], products: Mapping[str, Product]) -> Mapping[UUID, Exception]:
    if not sold:
        return {}
    checkpoint("decided")
    write = _given(sold[0].sale.record_many, "record_many")
    refused = write([ticket.sale.receipt for ticket in sold], products)
    checkpoint("recorded")
    return refused


def _given(write: F | None, name: str) -> F:
    if write is None:
        raise TypeError(f"`combined` needs sales with `{name}`; orders.services makes them")
    return write


def _skus(batch: list[Ticket]) -> set[str]:
    return {line.sku for ticket in batch for line in ticket.sale.lines}


def _left(products: Mapping[str, Product]) -> dict[str, int]:
    return {sku: product.available for sku, product in products.items()}


def _decide(batch: list[Ticket], products: Mapping[str, Product], left: dict[str, int]) -> list[Ticket]:
    """Give each of `batch`, in turn, its units of `left` or its refusal; return who is served."""
    for ticket in batch:
        ticket.error = _refusal(ticket.sale, products, left)
    return [ticket for ticket in batch if ticket.error is None]


def _settle(batch: list[Ticket]) -> None:
    for ticket in batch:
        ticket.settled = True


def _refusal(sale: Sale, products: Mapping[str, Product], left: dict[str, int]) -> Exception | None:
    """Take the sale's lines from `left`, or say why not."""
    missing = [line.sku for line in sale.lines if line.sku not in left]
    if missing:
        return UnknownProduct(missing)
    if refusal := cannot_be_ordered(sale.lines, products):
        return refusal
    short = [line for line in sale.lines if left[line.sku] < line.quantity]
    if short:
        shortages = [Shortage(line.sku, line.quantity, max(0, left[line.sku])) for line in short]
        return sold_out(shortages, products)
    for line in sale.lines:
        left[line.sku] -= line.quantity
    return None

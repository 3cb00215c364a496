"""Deliveries from a file: all or nothing, and once, however often the file is read.

The command reads CSV; the admin (`inventory.delivery_admin`) previews CSV and XLSX by the same rules.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Final

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils.translation import gettext as _

from inventory.domain import InvalidCart, Line
from inventory.models import LAB_PREFIX, Product, StockMovement
from inventory.rows import lock_rows
from inventory.services import change_stock, create_product

COLUMNS: Final = ("sku", "quantity", "cause")
OPTIONAL: Final = ("name", "price")
MAX_QUANTITY: Final = 1_000_000
"""Units of one delivery; more is taken for a slip."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A line of the file: `quantity` units of `sku`, because of `cause`; name and price for a new product."""

    number: int
    sku: str
    quantity: int
    cause: str
    name: str = ""
    price: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What an import did, or would do: units `received` in `booked` lines, `repeated` lines, new products."""

    booked: int
    repeated: int
    created: int
    received: int


@dataclass(frozen=True, slots=True)
class WrongLine:
    """A line that can't be booked: its number in the file, and why."""

    number: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.number}: {self.reason}"


class ImportRefused(Exception):
    """Nothing was booked. `errors` has a sentence for each wrong line, with its number."""

    def __init__(self, errors: Iterable[str]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(self.errors))


def read_deliveries(rows: Iterable[str]) -> list[Delivery]:
    """Return the deliveries in a CSV text with a heading; touches no database.

    Args:
        rows: lines of text. The heading names `sku`, `quantity` and `cause`, and may name `name`, `price`.

    Raises:
        ImportRefused: with every wrong line.

    Example:
        >>> read_deliveries(["sku,quantity,cause", "mug,3,note-17"])
        [Delivery(number=2, sku='mug', quantity=3, cause='note-17', name='', price=None)]
    """
    reader = csv.DictReader(rows)
    check_heading(reader.fieldnames or [])
    deliveries, wrong = read_rows((reader.line_num, row) for row in reader)
    if wrong:
        raise ImportRefused(map(str, wrong))
    return deliveries


def check_heading(heading: Sequence[str]) -> None:
    """Refuse a heading without a column that is needed, or with one that is unknown.

    Raises:
        ImportRefused: naming the columns.
    """
    if missing := [name for name in COLUMNS if name not in heading]:
        text = _("line 1: the heading lacks %(missing)s; it is %(heading)r")
        raise ImportRefused([text % {"missing": ", ".join(missing), "heading": ",".join(heading)}])
    if unknown := [name for name in heading if name not in COLUMNS + OPTIONAL]:
        text = _("line 1: unknown column %(unknown)r; known are %(known)s")
        raise ImportRefused([text % {"unknown": unknown[0], "known": ", ".join(COLUMNS + OPTIONAL)}])


def read_rows(
    rows: Iterable[tuple[int, Mapping[str | None, str | None]]],
) -> tuple[list[Delivery], list[WrongLine]]:
    """Return the deliveries in rows under a heading, given with their line numbers, and the wrong ones."""
    deliveries, wrong = [], []
    for number, row in rows:
        try:
            deliveries.append(_delivery(number, row))
        except ValueError as error:
            wrong.append(WrongLine(number, str(error)))
    return deliveries, wrong + list(_repeated_causes(deliveries))


def import_deliveries(deliveries: Iterable[Delivery], *, dry_run: bool = False) -> Report:
    """Book all of `deliveries` or none. A line whose cause was booked before is left out.

    Args:
        deliveries: see `read_deliveries`.
        dry_run: do everything, then roll it back.

    Raises:
        ImportRefused: with every line that can't be booked.
    """
    errors: list[str] = []
    lines = sorted(deliveries, key=lambda line: (line.sku, line.number))
    booked: list[tuple[Delivery, Booked]] = []
    with transaction.atomic():
        lock_products(lines)
        for line in lines:
            try:
                booked.append((line, book(line)))
            except ValueError as error:
                errors.append(str(WrongLine(line.number, str(error))))
        if errors or dry_run:
            transaction.set_rollback(True)
    if errors:
        raise ImportRefused(errors)
    done = [line for line, how in booked if how is not Booked.BEFORE]
    return Report(
        booked=len(done),
        repeated=len(booked) - len(done),
        created=sum(how is Booked.WITH_NEW_PRODUCT for _, how in booked),
        received=sum(line.quantity for line in done),
    )


class Booked(Enum):
    """What booking a delivery did."""

    NOW = "now"
    WITH_NEW_PRODUCT = "with a new product"
    BEFORE = "before"


def lock_products(deliveries: Iterable[Delivery]) -> None:
    """Lock the products of a file in the order in which a cart locks them, not in that of the file."""
    skus = {line.sku for line in deliveries}
    lock_rows(Product.objects.filter(sku__in=skus).values_list("pk", flat=True))


def book(line: Delivery) -> Booked:
    """Book one delivery in the current transaction, once.

    Raises:
        ValueError: the product can't be; it says why.
    """
    if StockMovement.objects.filter(cause=_cause(line)).exists():
        return Booked.BEFORE
    try:
        return Booked.WITH_NEW_PRODUCT if _book(line) else Booked.NOW
    except ValidationError as error:
        raise ValueError("; ".join(error.messages)) from error


def _book(line: Delivery) -> bool:
    """Book one line; True when it made a new product."""
    product = Product.objects.filter(sku=line.sku).first()
    new = product is None
    if product is None:
        if line.price is None:
            raise ValueError(
                _("there is no product %(sku)r; give its price to create it") % {"sku": line.sku}
            )
        product = create_product(line.sku, name=line.name, price=line.price)
    change_stock(product, StockMovement.Kind.RECEIVED, line.quantity, _cause(line))
    return new


def _cause(line: Delivery) -> str:
    return f"import:{line.cause}:{line.sku}"


def _delivery(number: int, row: Mapping[str | None, str | None]) -> Delivery:
    if None in row or None in row.values():
        raise ValueError(_("has more or fewer fields than the heading"))
    given = {str(name): (value or "").strip() for name, value in row.items()}
    if nul := [name for name, value in given.items() if "\0" in value]:
        raise ValueError(_("%(name)s has the character NUL; remove it") % {"name": nul[0]})
    sku = _sku(given["sku"])
    if not given["cause"] or len(given["cause"]) > 120:
        text = _("cause %(cause)r must have 1 to 120 characters, e.g. a delivery note")
        raise ValueError(text % {"cause": given["cause"][:40]})
    quantity, price = _quantity(given["quantity"]), _price(given.get("price", ""))
    return Delivery(number, sku, quantity, given["cause"], given.get("name", ""), price)


def _sku(text: str) -> str:
    try:
        sku = Line(text, 1).sku
    except InvalidCart:
        reason = _("sku %(sku)r must be 1 to 64 letters, digits, '.', '_' or '-', e.g. 'mug-01'")
        raise ValueError(reason % {"sku": text[:40]}) from None
    if sku.startswith(LAB_PREFIX):
        raise ValueError(_("sku %(sku)r is the oversell lab's; only the lab may make it") % {"sku": sku})
    return sku


def _quantity(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= MAX_QUANTITY:
        reason = _("quantity %(quantity)r must be a whole number, 1 to %(most)s")
        raise ValueError(reason % {"quantity": text[:40], "most": MAX_QUANTITY})
    return int(text)


def _price(text: str) -> Decimal | None:
    try:
        return Decimal(text) if text else None
    except InvalidOperation:
        reason = _("price %(price)r must be a number such as 7.50")
        raise ValueError(reason % {"price": text[:40]}) from None


def _repeated_causes(deliveries: Iterable[Delivery]) -> Iterator[WrongLine]:
    first: dict[str, int] = {}
    for line in deliveries:
        before = first.setdefault(_cause(line), line.number)
        if before != line.number:
            reason = _("%(sku)s has the cause %(cause)r of line %(before)s; add them up")
            facts = {"sku": line.sku, "cause": line.cause, "before": before}
            yield WrongLine(line.number, reason % facts)

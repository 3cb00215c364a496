"""What can go wrong with stock. Every error names the value, the reason and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class InventoryError(Exception):
    """The base of every error of this package."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with every attribute: worker processes hand errors on."""
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(cls: type[InventoryError], args: tuple[Any, ...], state: dict[str, Any]) -> InventoryError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class InvalidLines(InventoryError, ValueError):
    """The lines, or another argument, can't be used. Nothing was asked of the database."""


class UnknownSku(InventoryError, LookupError):
    """There is no item with this SKU.

    Attributes:
        skus: every SKU of the call that is unknown.
    """

    def __init__(self, skus: Iterable[str]) -> None:
        self.skus = tuple(skus)
        super().__init__(
            f"unknown SKU: {', '.join(map(repr, self.skus))}; check the spelling, or receive() it first"
        )


class UnknownLocation(InventoryError, LookupError):
    """There is no location with this code."""


class Shortage(NamedTuple):
    """One line that is short: `requested` units of `sku` were asked for, `available` are for sale."""

    sku: str
    requested: int
    available: int


class SoldOut(InventoryError):
    """There isn't enough stock: a final answer. Nothing was taken.

    Attributes:
        shortages: every short line, with `sku`, `requested` and `available`.
    """

    def __init__(self, shortages: Iterable[Shortage]) -> None:
        self.shortages = tuple(shortages)
        short = ", ".join(f"{s.sku} ({s.available} of {s.requested})" for s in self.shortages)
        super().__init__(f"not enough stock: {short}")


class NotThere(InventoryError):
    """Fewer units are in a state than should leave it, for example to ship more than was sold.

    Attributes:
        sku: of the item. requested: units that should move. there: units that can.
    """

    def __init__(self, sku: str, requested: int, there: int, what: str) -> None:
        self.sku, self.requested, self.there = sku, requested, there
        super().__init__(f"{sku}: {requested} should move, but {there} {what}")


class Busy(InventoryError):
    """The stock was locked for too long: try again. It never means sold out, and nothing was taken.

    Attributes:
        reason: what was waited for. retry_after: seconds after which another try makes sense.
    """

    def __init__(self, reason: str, retry_after: float = 1.0) -> None:
        self.reason, self.retry_after = reason, retry_after
        super().__init__(f"{reason}; try again in {retry_after:g} s")


class CauseUsed(InventoryError):
    """The cause has been used for something else. Nothing was changed.

    Attributes:
        cause: the one that was given.
    """

    def __init__(self, cause: str, was: str) -> None:
        self.cause = cause
        super().__init__(
            f"the cause {cause!r} was used for {was}, with other lines or another verb; "
            f"a cause names one change of stock: use another for this one"
        )


class ReservationGone(InventoryError):
    """The reservation has ended: it expired, was released or sold, or never was. Reserve again.

    Attributes:
        id: of the reservation. state: what became of it; None where there is none.
    """

    def __init__(self, id: object, state: str | None) -> None:
        self.id, self.state = id, state
        super().__init__(f"the reservation {id} {f'is {state}' if state else 'is unknown'}; reserve again")


class TransactionError(InventoryError, RuntimeError):
    """The call doesn't fit the transaction it is made in; the message says how to make it."""


class DatabaseUnavailable(InventoryError):
    """The database failed before a COMMIT was sent: nothing was changed."""


class OutcomeUnknown(InventoryError):
    """The database failed in COMMIT. Repeat the call with the same cause: it takes effect once.

    Attributes:
        cause: of the change that may or may not have been made.
    """

    def __init__(self, cause: str) -> None:
        self.cause = cause
        super().__init__(
            f"the database failed while {cause!r} was committed; repeat it with the same cause: "
            f"it counts once"
        )

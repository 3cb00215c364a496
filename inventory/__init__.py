"""Stock that can't be oversold, for any Django project's own models."""

from inventory.api import Stock, stock
from inventory.exceptions import (
    Busy,
    CauseUsed,
    DatabaseUnavailable,
    InvalidLines,
    InventoryError,
    NotThere,
    OutcomeUnknown,
    ReservationGone,
    Shortage,
    SoldOut,
    TransactionError,
    UnknownLocation,
    UnknownSku,
)
from inventory.lines import Line

__version__ = "0.1.0"

__all__ = [
    "Busy",
    "CauseUsed",
    "DatabaseUnavailable",
    "InvalidLines",
    "InventoryError",
    "Line",
    "NotThere",
    "OutcomeUnknown",
    "ReservationGone",
    "Shortage",
    "SoldOut",
    "Stock",
    "TransactionError",
    "UnknownLocation",
    "UnknownSku",
    "stock",
]

"""What the shop publishes: after the commit, at least once, in order within one order or product.

Receivers are called by the relay (`orders.events.relay`), not by the request. Each gets:

    sender: `OrderEvent`.
    event: an `OrderEvent`; `event.pk` is the id by which a receiver recognizes an event that it has handled.
    order or product: what it is about, as it is by now, which may be further than the event.

A receiver that raises gets the event again later, and so do the other receivers of that event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from django.dispatch import Signal

from orders.models import OrderEvent

Kind = OrderEvent.Kind


class RobustSignal(Signal):
    """Django's, whose `send_robust` outlives the failure of a receiver without a name, such as a partial.

    Django 5.2 to 6.1 log a failure with the receiver's `__qualname__`, and raise where there is none.
    """

    def _log_robust_failure(self, receiver: Callable[..., Any], err: Exception) -> None:
        named = receiver if hasattr(receiver, "__qualname__") else type(receiver)
        super()._log_robust_failure(named, err)  # type: ignore[misc]


order_placed = RobustSignal()
"""The order was placed; its units are sold."""
order_paid = RobustSignal()
"""The order was paid."""
order_shipped = RobustSignal()
"""Units of the order were shipped; `event.data` says which."""
order_returned = RobustSignal()
"""Units of the order came back; `event.data` has `reference` and `lines`."""
order_cancelled = RobustSignal()
"""The order was cancelled; its units are for sale again."""
order_expired = RobustSignal()
"""The order was not paid in time; its units are for sale again."""
order_units_cancelled = RobustSignal()
"""Units of the order that hadn't left were cancelled; `event.data` has `reference` and `lines`."""
order_refunded = RobustSignal()
"""Staff refunded money: have the payment provider pay it back; see `event.data`."""
low_stock = RobustSignal()
"""No more than `low_stock_threshold` units of the product are for sale; `event.data` has `available`."""
back_in_stock = RobustSignal()
"""Units of a watched product are for sale again after there were none; `event.data` has `available`."""
payment_refused = RobustSignal()
"""Money came that the order does not take: too late, or another amount. Give it back; see `event.data`."""

SIGNALS: Final[Mapping[str, Signal]] = {
    Kind.PLACED: order_placed,
    Kind.PAID: order_paid,
    Kind.SHIPPED: order_shipped,
    Kind.RETURNED: order_returned,
    Kind.CANCELLED: order_cancelled,
    Kind.EXPIRED: order_expired,
    Kind.PAYMENT_REFUSED: payment_refused,
    Kind.UNITS_CANCELLED: order_units_cancelled,
    Kind.REFUNDED: order_refunded,
    Kind.LOW_STOCK: low_stock,
    Kind.BACK_IN_STOCK: back_in_stock,
}
"""By the kind of the event."""

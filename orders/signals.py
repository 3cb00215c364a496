"""What the shop tells others about its orders: after the commit, at least once, in order within one order.

Receivers are called by the relay (`orders.relay`), not by the request. Each gets:

    sender: `Order`.
    event: an `OrderEvent`; `event.pk` is the id by which a receiver recognizes an event that it has handled.
    order: the order as it is by now, which may be further than the event.

A receiver that raises gets the event again later, and so do the other receivers of that event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from django.dispatch import Signal

from inventory.signals import RobustSignal
from orders.event_models import OrderEvent

Kind = OrderEvent.Kind

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
}
"""By the kind of the event."""

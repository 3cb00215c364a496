"""What happens to an order's units afterwards: shipped, or cancelled."""

from django.db import transaction
from oscar.apps.order.processing import EventHandler as OscarsHandler

from examples.oscar.order.utils import units
from inventory import stock


class EventHandler(OscarsHandler):  # noqa: D101 - Oscar's
    def handle_shipping_event(self, order, event_type, lines, line_quantities, **kwargs):  # noqa: D102
        with transaction.atomic():
            event = super().handle_shipping_event(order, event_type, lines, line_quantities, **kwargs)
            if shipped := units(lines, line_quantities):
                stock.ship(shipped, cause=f"shipping-{event.pk}", of=f"order-{order.number}")
        return event

    def handle_order_status_change(self, order, new_status, note_msg=None):  # noqa: D102
        with transaction.atomic():
            super().handle_order_status_change(order, new_status, note_msg)
            if new_status == "Cancelled" and units(order.lines.all()):
                stock.cancel(cause=f"cancel-{order.number}", of=f"order-{order.number}")

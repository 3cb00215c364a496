"""Placing an order sells its units in the order's transaction: one statement for all lines."""

from collections import Counter

from django.db import transaction
from oscar.apps.order.exceptions import UnableToPlaceOrder
from oscar.apps.order.utils import *  # noqa: F403
from oscar.apps.order.utils import OrderCreator as OscarsCreator

from inventory import InventoryError, SoldOut, stock


def units(lines, quantities=None):
    """Return what lines take from the inventory, by SKU; products without stock take nothing."""
    found = Counter()
    for line, quantity in zip(lines, quantities or [line.quantity for line in lines], strict=True):
        if line.stockrecord.can_track_allocations:
            found[line.stockrecord.sku] += quantity
    return found


class OrderCreator(OscarsCreator):  # noqa: D101 - Oscar's
    def place_order(self, *args, **kwargs):  # noqa: D102 - Oscar answers UnableToPlaceOrder with the basket's preview
        try:
            with transaction.atomic():
                order = super().place_order(*args, **kwargs)
                if sold := units(order.lines.select_related("stockrecord", "product")):
                    stock.sell(sold, cause=f"order-{order.number}")
        except SoldOut as error:
            raise UnableToPlaceOrder("Someone was faster: your basket isn't in stock any more.") from error
        except InventoryError as error:
            raise UnableToPlaceOrder(str(error)) from error
        return order

    def update_stock_records(self, line):
        """Do nothing: `place_order` sells all lines at once."""

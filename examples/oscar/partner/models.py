"""Oscar's stock record, whose units are the inventory's."""

from django.db import transaction
from oscar.apps.partner.abstract_models import AbstractStockRecord

from inventory import UnknownSku, stock


class StockRecord(AbstractStockRecord):
    """What is for sale is asked of the inventory; `num_in_stock` only says what a new record begins with."""

    @property
    def sku(self):
        """The inventory's name for it, which stays when the partner's changes."""
        return f"record-{self.pk}"

    @property
    def net_stock_level(self):
        """Units for sale: Oscar's availability policies, its basket and its search ask for them."""
        try:
            return stock.available(self.sku)
        except UnknownSku:  # nothing came in so far
            return 0

    def save(self, *args, **kwargs):
        """Take a new record's units in; what comes later is received, counted or adjusted."""
        new = self._state.adding
        with transaction.atomic():
            super().save(*args, **kwargs)
            if new and self.num_in_stock:
                stock.receive(self.sku, self.num_in_stock, cause=f"{self.sku} is new")


from oscar.apps.partner.models import *  # noqa: E402, F403 - Oscar's other models, behind this one

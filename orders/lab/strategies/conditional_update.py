"""Sound: let one UPDATE check and subtract."""

from __future__ import annotations

from uuid import UUID

from django.db.models import F

from orders.lab.cart import Cart
from orders.lab.models import Product
from orders.lab.strategies.base import Strategy, in_key_order, refuse


class ConditionalUpdate(Strategy):
    """Idea:
        UPDATE … SET on_hand = on_hand - n WHERE on_hand >= n: the database checks and subtracts in one step.
        No row changed means not enough.

    Interleaving:
        A's UPDATE takes the last unit. B's UPDATE waits for A's commit, looks at the row again, finds 0 >= 1
        false and changes nothing. If A rolls back instead, B finds the unit and takes it.

    Verdict:
        Exact, with no lock to forget: nothing that was read earlier is trusted. A cart's lines run in
        primary-key order, and one short line rolls all of them back.

    Cost:
        The row is locked from the UPDATE to the commit. The cheapest of the sound ones that use only the
        database.
    """

    name = "conditional_update"
    sound = True

    def sell(self, cart: Cart) -> UUID:
        """Subtract where there is enough."""
        with self.transaction():
            products = self.read(cart)
            self.checkpoint("decided")  # nothing is decided here: the next statement decides
            for product, units in in_key_order(cart, products):
                enough = Product.objects.filter(pk=product.pk, on_hand__gte=units)
                if not enough.update(on_hand=F("on_hand") - units, version=F("version") + 1):
                    refuse(cart, product)
            self.checkpoint("written")
            return self.record(cart, products)

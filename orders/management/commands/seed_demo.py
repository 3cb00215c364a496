"""`manage.py seed_demo`: something to buy, and under DEBUG a user who may look at it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand

from orders.catalog.products import create_product
from orders.currencies import is_whole
from orders.models import Product, shop_currency

PRODUCTS = (
    ("mug", "Enamel mug", Decimal("9.50"), 100),
    ("pen", "Fountain pen", Decimal("24.00"), 25),
    ("notebook", "Dotted notebook", Decimal("12.90"), 60),
    ("poster", "Letterpress poster, numbered", Decimal("45.00"), 10),
    ("ticket", "Ticket for the last seat", Decimal("80.00"), 1),
)


class Command(BaseCommand):
    """Creates what is missing; what is there stays as it is, sold units included."""

    help = "Create the demo's products, and under DEBUG the user admin/admin. Safe to repeat."

    def handle(self, *args: Any, **options: Any) -> None:
        """Create what is missing."""
        made = sum(self._product(*row) for row in PRODUCTS)
        self.stdout.write(f"{made} products created, {len(PRODUCTS) - made} were there.")
        if settings.DEBUG:
            self._admin()

    def _product(self, sku: str, name: str, price: Decimal, on_hand: int) -> bool:
        if Product.objects.filter(sku=sku).exists():
            return False
        price = round(price, 0) if is_whole(shop_currency()) else price
        create_product(sku, name=name, price=price, on_hand=on_hand)
        return True

    def _admin(self) -> None:
        # A well-known password: only where DEBUG says that this is no real shop.
        users = get_user_model().objects
        if not users.filter(username="admin").exists():
            users.create_superuser("admin", "admin@example.com", "admin")
            self.stdout.write("User admin created, password admin (DEBUG only).")

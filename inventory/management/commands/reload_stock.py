"""`manage.py reload_stock`: rebuild what a strategy keeps in Redis, or end what it has spread over rows."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from inventory.models import Product
from inventory.strategies import UnknownStrategy, get_strategy


class Command(BaseCommand):
    """Repairs units that a crash took from Redis and that no order has. Safe while the shop is open."""

    help = (
        "Rebuild a strategy's stock in Redis from the database, or put units in segments and unit rows back"
        " into the products' rows. Sales that are under way may leave Redis a little too high for a moment;"
        " the database refuses what isn't there."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take the strategy and the SKUs."""
        parser.add_argument("strategy", help="such as redis_gate or segmented_rows")
        parser.add_argument("skus", nargs="*", metavar="sku", help="default: every product")

    def handle(self, *args: Any, **options: Any) -> None:
        """Rebuild."""
        try:
            strategy = get_strategy(options["strategy"])
        except UnknownStrategy as error:
            raise CommandError(str(error)) from None
        products = self._products(options["skus"])
        strategy.forget(products)
        strategy.prepare(products)
        self.stdout.write(f"{strategy.name}: {len(products)} products rebuilt from the database.")

    def _products(self, skus: list[str]) -> list[Product]:
        products = list(Product.objects.filter(sku__in=skus) if skus else Product.objects.all())
        missing = sorted(set(skus) - {product.sku for product in products})
        if missing:
            raise CommandError(f"unknown product: {', '.join(missing)}")
        return products

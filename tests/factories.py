"""Products and orders for tests, made by the project's own services, so that ledger and stock agree."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from factory.declarations import LazyAttribute, LazyFunction, Sequence
from factory.django import DjangoModelFactory

from inventory.domain import Line
from inventory.models import Product
from inventory.services import create_product
from orders.models import Order
from orders.services import checkout


class ProductFactory(DjangoModelFactory[Product]):
    """A guarded product with ten units."""

    class Meta:
        model = Product

    sku = Sequence(lambda n: f"product-{n}")
    name = LazyAttribute(lambda product: product.sku.title())
    price = Decimal("2.50")
    on_hand = 10

    @classmethod
    def _create(cls, model_class: type[Product], *args: Any, **kwargs: Any) -> Product:
        return create_product(kwargs.pop("sku"), **kwargs)


class LabProductFactory(ProductFactory):
    """An unguarded product with one unit: two buyers, one of whom must go without."""

    sku = Sequence(lambda n: f"lab-{n}")
    on_hand = 1
    guarded = False


class OrderFactory(DjangoModelFactory[Order]):
    """A placed order of one unit of a new product; `lines` and `strategy` may be given."""

    class Meta:
        model = Order

    strategy = "conditional_update"
    lines = LazyFunction(lambda: [Line(ProductFactory.create().sku, 1)])

    @classmethod
    def _create(cls, model_class: type[Order], *args: Any, **kwargs: Any) -> Order:
        return checkout(kwargs["lines"], kwargs["strategy"])

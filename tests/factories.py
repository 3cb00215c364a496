"""Products and orders for tests, made by the project's own services, so that ledger and stock agree."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from factory.declarations import LazyAttribute, LazyFunction, Sequence
from factory.django import DjangoModelFactory

from inventory import Line, stock
from orders.models import Order, Product
from orders.selling.checkout import checkout


class ProductFactory(DjangoModelFactory[Product]):
    """A product with ten units; other fields of the product may be given."""

    class Meta:
        model = Product

    sku = Sequence(lambda n: f"product-{n}")
    name = LazyAttribute(lambda product: product.sku.title())
    price = Decimal("2.50")
    on_hand = 10

    @classmethod
    def _create(cls, model_class: type[Product], *args: Any, **kwargs: Any) -> Product:
        # `create_product` checks each field and constraint by a query, which took longer than most tests do.
        on_hand = kwargs.pop("on_hand")
        product = Product(**kwargs)
        product.save(force_insert=True)
        if on_hand:
            stock.receive(product.sku, on_hand, cause=f"initial:{product.pk}")
        return Product.objects.select_related("stock").get(pk=product.pk)


class OrderFactory(DjangoModelFactory[Order]):
    """A placed order of one unit of a new product; `lines` and `strategy` may be given."""

    class Meta:
        model = Order

    strategy = "conditional_update"
    lines = LazyFunction(lambda: [Line(ProductFactory.create().sku, 1)])

    @classmethod
    def _create(cls, model_class: type[Order], *args: Any, **kwargs: Any) -> Order:
        return checkout(kwargs["lines"], kwargs["strategy"])

"""`python -m examples.oscar.stock PIECES [PRODUCTS]` fills the shelves; without PIECES, tells the stock.

`python -m examples.oscar.stock after` ships the first order and cancels the second.
"""

import json
import sys

import django

django.setup()

from django.core.management import call_command  # noqa: E402 - Django's apps come first
from oscar.core.loading import get_class, get_model  # noqa: E402
from oscar.test.factories import create_product  # noqa: E402

from inventory import stock  # noqa: E402


def fill(pieces: int, products: int) -> None:
    """Migrate, and put this many pieces of each product on the shelf."""
    call_command("migrate", verbosity=0)
    country = get_model("address", "Country")
    country.objects.create(
        iso_3166_1_a2="DE", iso_3166_1_a3="DEU", iso_3166_1_numeric="276", name="Germany",
        printable_name="Germany", is_shipping_country=True,
    )  # fmt: skip
    for number in range(products):
        create_product(title=f"Mug {number}", price="9.90", num_in_stock=pieces)


def sold() -> dict[str, list[int]]:
    """Return, for each product: pieces on the shelf, allocated to orders, and in order lines."""
    record, line = get_model("partner", "StockRecord"), get_model("order", "Line")
    return {
        str(each.product_id): [
            *shelf(each),
            sum(line.objects.filter(product_id=each.product_id).values_list("quantity", flat=True)),
        ]
        for each in record.objects.order_by("product_id")
    }


def shelf(record) -> tuple[int, int]:
    """Return the pieces that are there, and those of them that are sold: by the inventory, or by Oscar."""
    if not hasattr(record, "sku"):
        return record.num_in_stock, record.num_allocated or 0
    levels = stock.levels(record.sku)
    return sum(level.on_hand for level in levels), sum(level.committed for level in levels)


def after_the_sale() -> None:
    """Ship the first order, and cancel the second."""
    handler = get_class("order.processing", "EventHandler")()
    first, second, *_ = get_model("order", "Order").objects.order_by("pk")
    shipped, _ = get_model("order", "ShippingEventType").objects.get_or_create(name="Shipped")
    lines = first.lines.all()
    handler.handle_shipping_event(first, shipped, lines, [line.quantity for line in lines])
    handler.handle_order_status_change(second, "Cancelled")


if __name__ == "__main__":
    if sys.argv[1:] == ["after"]:
        after_the_sale()
    elif len(sys.argv) > 1:
        fill(*map(int, [*sys.argv[1:], 1][:2]))
    print(json.dumps(sold()))

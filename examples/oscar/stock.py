"""`python -m examples.oscar.stock PIECES [PRODUCTS]` fills the shelves; without PIECES, tells the stock."""

import json
import sys

import django

django.setup()

from django.core.management import call_command  # noqa: E402 - Django's apps come first
from oscar.core.loading import get_model  # noqa: E402
from oscar.test.factories import create_product  # noqa: E402


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
            each.num_in_stock,
            each.num_allocated or 0,
            sum(line.objects.filter(product_id=each.product_id).values_list("quantity", flat=True)),
        ]
        for each in record.objects.order_by("product_id")
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        fill(*map(int, [*sys.argv[1:], 1][:2]))
    print(json.dumps(sold()))

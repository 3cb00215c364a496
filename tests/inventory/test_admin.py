"""The stock pages: they show what there is, and change stock only by a movement."""

from __future__ import annotations

from functools import partial

import pytest
from django.urls import reverse

from inventory.domain import Line, SoldOut
from inventory.models import Product, StockMovement
from inventory.segments import levels
from orders.audit import audit
from orders.services import checkout
from tests.factories import LabProductFactory, ProductFactory
from tests.inventory.interleaving import Buyer, buyers
from tests.inventory.totals import totals_of

pytestmark = pytest.mark.django_db(transaction=True)
LIST = reverse("admin:inventory_product_changelist")
ADD = reverse("admin:inventory_product_add")


def page_of(product: Product) -> str:
    """Return the address of a product's page."""
    return reverse("admin:inventory_product_change", args=[product.pk])


def form(**changes: object) -> dict[str, object]:
    """Return what the browser sends."""
    inline = {f"movements-{name}": 0 for name in ("TOTAL_FORMS", "INITIAL_FORMS")}
    return {
        "name": "Mug",
        "price": "2.50",
        "currency": "EUR",
        "active": "on",
        "backorder_limit": "0",
        "change_by": "",
        "cause": "",
        **inline,
        **changes,
    }


def test_the_list_shows_stock_sales_and_value(admin_client):
    """Seven units at 2.50 are worth 17.50 after three were sold."""
    sku = ProductFactory.create(on_hand=10).sku
    checkout([Line(sku, 3)], "row_lock")
    text = admin_client.get(LIST).content.decode()
    for cell in ('field-stock">7<', 'field-sold">3<', 'field-value">17.50<'):
        assert cell in text


def test_the_filters_find_sold_out_and_lab_products(admin_client):
    """Sold out, in stock, below zero, and the lab's: each is one click."""
    gone, some, lab = ProductFactory.create(on_hand=0), ProductFactory.create(), LabProductFactory.create()
    Product.objects.filter(pk=lab.pk).update(on_hand=-1)
    shown = {
        "stock=none": {gone.sku},
        "stock=some": {some.sku},
        "stock=below": {lab.sku},
        "lab=yes": {lab.sku},
        "lab=no": {gone.sku, some.sku},
        f"q={some.sku}": {some.sku},
    }
    for query, skus in shown.items():
        products = admin_client.get(f"{LIST}?{query}").context["cl"].result_list
        assert {product.sku for product in products} == skus, query


def test_the_list_asks_the_same_number_of_queries_for_any_number_of_products(
    admin_client, django_assert_max_num_queries
):
    """Thirty products cost no more queries than one."""
    for _ in range(30):
        ProductFactory.create()
    with django_assert_max_num_queries(8):
        admin_client.get(LIST)


def test_a_new_product_comes_with_its_movement(admin_client):
    """The first stock typed into the form is received, not just written down."""
    answer = admin_client.post(ADD, form(sku="mug", change_by="12"))
    assert answer.status_code == 302
    assert totals_of("mug").balanced
    assert totals_of("mug").left == 12


def test_a_new_product_may_be_priced_in_another_currency_than_the_shops(admin_client, settings):
    """Cents in a shop of yen: the price is judged by the product's own currency."""
    settings.CURRENCY = "JPY"
    answer = admin_client.post(ADD, form(sku="mug", price="9.90", currency="EUR", change_by="12"))
    assert answer.status_code == 302
    assert (Product.objects.get().currency, totals_of("mug").left) == ("EUR", 12)


def test_stock_is_changed_by_a_movement_with_its_cause(admin_client):
    """A delivery is received and breakage adjusted, both with the cause that was typed."""
    product = ProductFactory.create(on_hand=5)
    admin_client.post(page_of(product), form(change_by="4", cause="Delivery 7"))
    admin_client.post(page_of(product), form(change_by="-2", cause="Broken"))
    kept = totals_of(product.sku)
    assert kept.left == 7
    assert kept.balanced
    newest = list(StockMovement.objects.values_list("kind", "quantity")[:2])
    assert newest == [("adjusted", -2), ("received", 4)]
    assert "Delivery 7" in admin_client.get(page_of(product)).content.decode()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"change_by": "3"}, "Say what changed the stock"),
        ({"change_by": "-9", "cause": "Theft"}, "There are only 5"),
        ({"change_by": "some", "cause": "x"}, "whole number"),
        ({"change_by": "99999999999", "cause": "x"}, "less than or equal to 1000000000"),
        ({"change_by": "1000000000", "cause": "x"}, "At most 1000000000 units can be on hand."),
        ({"price": "-1"}, "greater than or equal to 0"),
    ],
)
def test_a_change_that_cannot_be_is_explained(admin_client, changes, reason):
    """The form says what is wrong, and nothing is written."""
    product = ProductFactory.create(on_hand=5)
    assert reason in admin_client.post(page_of(product), form(**changes)).content.decode()
    assert totals_of(product.sku).left == 5


@pytest.mark.parametrize("strategy", ["row_lock", "segmented_rows"])
@pytest.mark.parametrize("changes", [{"change_by": "-5", "cause": "Broken"}, {"backorder_limit": "0"}])
def test_what_the_form_has_found_holds_until_it_is_saved(admin_client, monkeypatch, strategy, changes):
    """A buyer who comes between the form's look and its save waits, and is sold out; nobody gets a 500."""
    product = ProductFactory.create(on_hand=5 if "cause" in changes else 0)
    limit = 5 - product.on_hand
    Product.objects.update(backorder_limit=limit)
    with buyers() as start:
        bought: list[Buyer] = []

        def look_then_a_buyer(products):
            found = levels(products)
            if not bought:
                bought.append(start("buyer", partial(checkout, [Line(product.sku, 1)], strategy)))
                assert bought[0].ends_or_waits() == "waits"
            return found

        monkeypatch.setattr("inventory.admin.levels", look_then_a_buyer)
        answer = admin_client.post(page_of(product), form(**({"backorder_limit": limit} | changes)))
        assert isinstance(bought[0].ends().error, SoldOut)
    assert answer.status_code == 302
    assert totals_of(product.sku).balanced


def test_a_lower_limit_and_a_correction_in_one_form(admin_client):
    """Three are sold and in the building: none can be missing once nothing may be sold beyond the stock."""
    product = ProductFactory.create(on_hand=3)
    Product.objects.update(backorder_limit=5)
    checkout([Line(product.sku, 3)], "row_lock")
    changes = {"change_by": "-3", "cause": "Broken", "backorder_limit": "0"}
    assert "There are only 0." in admin_client.post(page_of(product), form(**changes)).content.decode()
    changes["backorder_limit"] = "3"
    assert admin_client.post(page_of(product), form(**changes)).status_code == 302
    assert (Product.objects.get().on_hand, audit()) == (-3, [])


def test_stock_and_sku_cannot_be_written_over(admin_client):
    """Numbers sent by hand for read-only fields are not taken."""
    product = ProductFactory.create(on_hand=5)
    admin_client.post(page_of(product), form(on_hand="99", sku="other", guarded="", version="7"))
    product.refresh_from_db()
    assert (product.on_hand, product.sku != "other", product.guarded, product.version) == (5, True, True, 0)


def test_a_product_page_shows_its_newest_movements(admin_client):
    """The page shows twenty movements at most, the newest first."""
    product = ProductFactory.create(on_hand=50)
    for _ in range(25):
        checkout([Line(product.sku, 1)], "row_lock")
    text = admin_client.get(page_of(product)).content.decode()
    assert text.count('class="field-quantity"') == 20


def test_movements_can_be_read_and_nothing_else(admin_client):
    """There is a list and a page for each, and no way to add, change or delete."""
    movement = ProductFactory.create().movements.get()
    assert admin_client.get(reverse("admin:inventory_stockmovement_changelist")).status_code == 200
    page = reverse("admin:inventory_stockmovement_change", args=[movement.pk])
    assert admin_client.get(page).status_code == 200
    assert admin_client.post(page, {"quantity": 99}).status_code == 403
    assert admin_client.get(reverse("admin:inventory_stockmovement_add")).status_code == 403
    assert (
        admin_client.post(reverse("admin:inventory_stockmovement_delete", args=[movement.pk])).status_code
        == 403
    )

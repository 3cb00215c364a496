"""What the database itself refuses, no matter who asks, and what the models refuse before that."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from io import StringIO

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction

from inventory.models import ImmutableRow, Product, StockMovement
from inventory.services import change_stock, create_product
from tests.factories import LabProductFactory, ProductFactory

pytestmark = pytest.mark.django_db
Kind = StockMovement.Kind


def raw(sql: str, *args: int) -> None:
    """Run SQL as somebody would who has never heard of the models."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql, args)


def refused_by(constraint: str):
    """Expect the database to refuse by `constraint`."""
    return pytest.raises(IntegrityError, match=constraint)


def test_a_guarded_stock_cannot_fall_below_zero():
    """The CHECK refuses it, also to plain SQL."""
    product = ProductFactory.create(on_hand=1)
    with refused_by("product_on_hand_not_negative"):
        raw("UPDATE inventory_product SET on_hand = -1 WHERE id = %s", product.pk)


def test_an_unguarded_stock_can():
    """The lab's products may show what goes wrong."""
    product = LabProductFactory.create()
    raw("UPDATE inventory_product SET on_hand = -1 WHERE id = %s", product.pk)
    product.refresh_from_db()
    assert product.on_hand == -1


def test_real_stock_cannot_be_unguarded():
    """The guard can't be taken off a product that isn't the lab's."""
    product = ProductFactory.create()
    with refused_by("product_unguarded_only_in_lab"):
        raw("UPDATE inventory_product SET guarded = false WHERE id = %s", product.pk)


def test_an_unguarded_product_cannot_become_a_real_one():
    """Nor can a lab product be renamed out of the lab."""
    product = LabProductFactory.create()
    with refused_by("product_unguarded_only_in_lab"):
        raw("UPDATE inventory_product SET sku = 'mug' WHERE id = %s", product.pk)


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ("price = -0.01", "product_price_not_negative"),
        ("sku = 'a b'", "product_sku_is_plain"),
        ("sku = ''", "product_sku_is_plain"),
        ("sku = E'mug\\n'", "product_sku_is_plain"),
        ("version = -1", "version"),
    ],
)
def test_the_database_refuses_nonsense_in_a_product(change, constraint):
    """Prices, SKUs and versions that can't be are refused by name."""
    product = ProductFactory.create()
    with refused_by(constraint):
        raw(f"UPDATE inventory_product SET {change} WHERE id = %s", product.pk)  # noqa: S608


def test_a_sku_is_unique():
    """Two products can't share a SKU: the model says so first, the database at last."""
    ProductFactory.create(sku="mug")
    with pytest.raises(ValidationError, match="already exists"):
        create_product("mug")
    with refused_by("sku"), transaction.atomic():
        Product.objects.create(sku="mug", name="Mug", price=1)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"sku": "a b"}, "sku"),
        ({"sku": "mug", "price": Decimal("-1")}, "price"),
        ({"sku": "mug", "price": Decimal("1.001")}, "price"),
        ({"sku": "x" * 65}, "sku"),
    ],
)
def test_a_product_that_cannot_be_is_refused_by_field(fields, field):
    """The service names the field before the database is asked to write."""
    with pytest.raises(ValidationError) as refused:
        create_product(**fields)
    assert field in refused.value.message_dict


def test_the_initial_stock_is_received():
    """A product's first units are accounted for by a movement; a product without any has none."""
    product = ProductFactory.create(on_hand=7)
    movement = product.movements.get()
    assert (movement.kind, movement.quantity, movement.cause) == (Kind.RECEIVED, 7, f"initial:{product.pk}")
    assert not ProductFactory.create(on_hand=0).movements.exists()


@pytest.mark.parametrize(
    ("kind", "quantity"),
    [
        ("sold", 1),
        ("sold", 0),
        ("received", -1),
        ("received", 0),
        ("restocked", -1),
        ("adjusted", 0),
        ("lost", 1),
    ],
)
def test_the_sign_of_a_movement_fits_its_kind(kind, quantity):
    """Units that are sold leave, units that are received come, and a movement of nothing is none."""
    product = ProductFactory.create()
    with refused_by("movement_sign_fits_kind"), transaction.atomic():
        StockMovement.objects.create(product=product, kind=kind, quantity=quantity, cause="test")


def test_a_movement_needs_a_cause():
    """Nothing moves for no reason."""
    with refused_by("movement_has_cause"), transaction.atomic():
        StockMovement.objects.create(
            product=ProductFactory.create(), kind=Kind.RECEIVED, quantity=1, cause=""
        )


def test_a_cause_counts_once():
    """The same return can't be restocked twice, and the stock stays as it was."""
    product = ProductFactory.create(on_hand=1)
    change_stock(product, Kind.RESTOCKED, 1, "return:17")
    with refused_by("cause"), transaction.atomic():
        change_stock(product, Kind.RESTOCKED, 1, "return:17")
    product.refresh_from_db()
    assert product.on_hand == 2


def test_a_change_of_stock_raises_the_version():
    """Anyone who compares versions sees a delivery, too."""
    product = ProductFactory.create(on_hand=1)
    change_stock(product, Kind.RECEIVED, 4, "delivery:1")
    assert (product.on_hand, product.version) == (5, 1)
    assert sum(movement.quantity for movement in product.movements.all()) == 5


def test_an_adjustment_below_zero_is_refused_whole():
    """A stock can't be adjusted below zero, and no movement claims that it was."""
    product = ProductFactory.create(on_hand=1)
    with refused_by("product_on_hand_not_negative"), transaction.atomic():
        change_stock(product, Kind.ADJUSTED, -2, "stocktaking:1")
    assert product.movements.count() == 1


def test_a_sale_is_no_change_of_stock_by_hand():
    """Sold movements belong to orders, so the service refuses them with the way to go."""
    with pytest.raises(ValueError, match="checkout"):
        change_stock(ProductFactory.create(), Kind.SOLD, -1, "x")


def test_the_models_refuse_to_change_a_movement():
    """Save, delete, and their bulk forms are refused with the remedy."""
    movement = ProductFactory.create().movements.get()
    attempts: list[Callable[[], object]] = [
        movement.save,
        movement.delete,
        StockMovement.objects.all().delete,
        lambda: StockMovement.objects.update(quantity=1),
        lambda: StockMovement.objects.bulk_update([movement], ["quantity"]),
    ]
    for attempt in attempts:
        with pytest.raises(ImmutableRow, match="adjusted"):
            attempt()


@pytest.mark.parametrize(
    "sql", ["UPDATE inventory_stockmovement SET quantity = 99", "DELETE FROM inventory_stockmovement"]
)
@pytest.mark.parametrize("factory", [ProductFactory, LabProductFactory])
def test_the_database_refuses_to_change_a_movement(sql, factory):
    """A trigger refuses plain SQL, for the lab's rows as well."""
    factory.create()
    with refused_by("immutable"):
        raw(sql)


def test_the_narrow_door_opens_for_the_labs_rows_only():
    """Even with the lab's switch on, a real product's movements stay, and no movement can be changed."""
    lab, real = LabProductFactory.create(), ProductFactory.create()
    with transaction.atomic():
        raw("SET LOCAL holdfast.lab = 'on'")
        with refused_by("immutable"):
            raw("DELETE FROM inventory_stockmovement WHERE product_id = %s", real.pk)
        with refused_by("immutable"):
            raw("UPDATE inventory_stockmovement SET quantity = 2 WHERE product_id = %s", lab.pk)
        raw("DELETE FROM inventory_stockmovement WHERE product_id = %s", lab.pk)
    assert set(StockMovement.objects.values_list("product__sku", flat=True)) == {real.sku}


def test_a_product_with_a_ledger_cannot_be_deleted():
    """Its movements protect it, in the ORM and in the database."""
    product = ProductFactory.create()
    with pytest.raises(IntegrityError):
        product.delete()
    with refused_by("foreign key"), transaction.atomic():
        raw("DELETE FROM inventory_product WHERE id = %s", product.pk)
        raw("SET CONSTRAINTS ALL IMMEDIATE")


def test_a_price_is_no_finer_than_its_currency():
    """Nobody can pay half a yen; cents of a dinar are ten of its thousandths."""
    yen = ProductFactory.build(price=Decimal("1.50"), currency="JPY")
    with pytest.raises(ValidationError, match=r"JPY is counted in whole units: 1\.50 can't be paid"):
        yen.full_clean()
    with pytest.raises(ValidationError, match="UGX is counted in whole units"):
        ProductFactory.build(price=Decimal("1.50"), currency="UGX").full_clean()
    for price, currency in ((Decimal("150.00"), "JPY"), (Decimal("1.55"), "KWD"), (Decimal("1.55"), "EUR")):
        ProductFactory.build(price=price, currency=currency).full_clean()


@pytest.mark.parametrize(("currency", "whole"), [("JPY", {True}), ("UGX", {True}), ("KWD", {True, False})])
def test_the_demo_is_priced_in_the_currency_of_the_shop(settings, currency, whole):
    """Also in one that has no cents, or thousandths."""
    settings.CURRENCY = currency
    call_command("seed_demo", stdout=StringIO())
    assert {product.currency for product in Product.objects.all()} == {currency}
    assert {product.price % 1 == 0 for product in Product.objects.all()} == whole


@pytest.mark.parametrize("price", ["Infinity", "NaN", "sNaN", "1e50", "1e999999", "1.005"])
def test_a_price_that_is_no_amount_is_refused_with_its_reason(price):
    """The field says what is wrong, and nothing is said of whole units; no arithmetic fails before."""
    with pytest.raises(ValidationError) as refused:
        create_product("mug", price=Decimal(price))
    assert set(refused.value.message_dict) == {"price"}
    assert "whole units" not in str(refused.value)

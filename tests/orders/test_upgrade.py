"""A database of the version before shipments, with data in it, is migrated: nothing is lost or made up."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from inventory.domain import Line
from inventory.models import Product, StockMovement
from inventory.stocktake import take_stock, with_count
from orders.audit import audit
from orders.fulfillment import TooManyReturned, ship, take_back
from orders.lifecycle import AlreadyShipped, TransitionRefused, cancel
from orders.models import Order, Shipment

pytestmark = pytest.mark.django_db(transaction=True)

BEFORE: list[tuple[str, str | None]] = [
    ("inventory", "0013_dated_by_the_database"),
    ("orders", "0013_dated_by_the_database"),
]


def migrate(targets: list[Any]) -> Any:
    """Migrate to `targets`; return the models of that time."""
    executor = MigrationExecutor(connection)
    executor.migrate(targets)
    executor.loader.build_graph()
    return executor.loader.project_state([target for target in targets if target[1]]).apps


def newest() -> list[Any]:
    """Return the last migrations of both apps."""
    nodes = MigrationExecutor(connection).loader.graph.leaf_nodes()
    return [node for node in nodes if node[0] in ("inventory", "orders")]


class OldShop:
    """Writes what the version before wrote."""

    def __init__(self, apps: Any) -> None:
        self.apps = apps
        self.products = {
            sku: self.make("inventory", "Product", sku=sku, name=sku, price=2, on_hand=0)
            for sku in ("mug", "pen")
        }
        for sku in self.products:
            self.move(sku, "received", 50, f"initial:{sku}")

    def make(self, app: str, model: str, **fields: Any) -> Any:
        """Insert a row."""
        return self.apps.get_model(app, model).objects.create(**fields)

    def move(self, sku: str, kind: str, quantity: int, cause: str) -> None:
        """Change the stock with its movement."""
        product = self.products[sku]
        self.make("inventory", "StockMovement", product=product, kind=kind, quantity=quantity, cause=cause)
        product.on_hand += quantity
        product.save()

    def order(self, state: str, parcel: dict[str, int] | None = None, **lines: int) -> UUID:
        """Insert an order of `lines`, of which `parcel` came back before it came to `state`."""
        parcel = parcel or {}
        order = self.make(
            "orders", "Order", id=uuid4(), state=state, total=2 * sum(lines.values()), strategy="row_lock"
        )
        for sku, units in lines.items():
            self.move(sku, "sold", -units, f"order:{order.id}:{sku}")
            back = parcel.get(sku, 0)
            if back:
                self.move(sku, "restocked", back, f"returned:{order.id}:parcel:{sku}")
            if state in ("cancelled", "expired"):
                self.move(sku, "restocked", units - back, f"restock:{order.id}:{sku}")
                back = units
            item = {"order": order, "product": self.products[sku], "quantity": units, "unit_price": 2}
            self.make("orders", "OrderItem", returned=back, **item)
        order_id: UUID = order.id
        return order_id

    def spread(self) -> None:
        """Reserve a mug, claim one, and put two into a segment."""
        mug = self.products["mug"]
        later = timezone.now() + timedelta(hours=1)
        self.make("inventory", "StockReservation", product=mug, quantity=1, expires_at=later)
        self.make("inventory", "StockClaim", product=mug, quantity=1, sale=uuid4())
        self.make("inventory", "StockSegment", product=mug, number=0, units=2)
        mug.reserved, mug.on_hand = 1, mug.on_hand - 3
        mug.save()


@pytest.fixture
def orders() -> Iterator[dict[str, UUID]]:
    """A shop of before, migrated; ids of its orders by what became of them."""
    try:
        shop = OldShop(migrate(BEFORE))
        made = {
            "placed": shop.order("placed", mug=2),
            "paid": shop.order("paid", mug=3, pen=1),
            "cancelled": shop.order("cancelled", mug=2),
            "expired": shop.order("expired", pen=1),
            "partly back": shop.order("paid", {"mug": 1}, mug=4, pen=2),
            "all back": shop.order("paid", {"pen": 1}, pen=1),
            "back and cancelled": shop.order("cancelled", {"mug": 1}, mug=3),
        }
        shop.spread()
        migrate(newest())
        yield made
    finally:
        migrate(newest())


def test_the_laws_hold_after_the_upgrade(orders):
    """All of them, and the sums of before are the sums of now."""
    assert audit() == []
    in_building = dict(with_count(Product.objects.all()).values_list("sku", "in_building"))
    assert in_building == {"mug": 50 - 3, "pen": 50 - 2}, "50 less what was shipped and stayed outside"
    assert StockMovement.objects.filter(kind="shipped").count() == 2


def test_what_came_back_had_left(orders):
    """Its order is shipped or returned; nothing is known of the others, which can be shipped from now on."""
    states = {name: Order.objects.get(pk=pk).state for name, pk in orders.items()}
    assert states == {
        "placed": "placed",
        "paid": "paid",
        "cancelled": "cancelled",
        "expired": "expired",
        "partly back": "shipped",
        "all back": "returned",
        "back and cancelled": "cancelled",
    }
    known = Shipment.objects.filter(item__order=orders["partly back"]).values_list("quantity", "reference")
    assert sorted(known) == [(2, "before-upgrade"), (4, "before-upgrade")]


def test_the_old_orders_go_on(orders):
    """Ship, return, cancel and count them: the invariants hold, and no unit moves twice."""
    ship(orders["paid"], None, "parcel-1")
    with pytest.raises(AlreadyShipped):
        cancel(orders["partly back"])
    with pytest.raises(TransitionRefused):
        ship(orders["partly back"], None, "again")
    with pytest.raises(TooManyReturned, match="only 3"):
        take_back(orders["partly back"], [Line("mug", 4)], "rest")
    assert take_back(orders["partly back"], [Line("mug", 3), Line("pen", 2)], "rest").state == "returned"
    cancel(orders["placed"])
    take_stock(Product.objects.get(sku="mug"), 40, reason="first count", reference="2026")
    assert audit() == []


def test_the_way_back_keeps_the_stock(orders):
    """Down to the version before and up again: shipments are forgotten, units aren't."""
    ship(orders["paid"], None, "parcel-1")
    before = list(Product.objects.order_by("sku").values_list("on_hand", "reserved"))
    migrate(BEFORE)
    migrate(newest())
    assert list(Product.objects.order_by("sku").values_list("on_hand", "reserved")) == before
    assert Order.objects.get(pk=orders["paid"]).state == "paid"
    assert audit() == []


def test_a_limit_that_was_meant_as_unlimited_is_lowered():
    """A database of before may have one that no delivery can be added to."""
    try:
        migrate([("inventory", "0020_scopes_and_moves"), newest()[-1]])
        Product.objects.create(sku="mug", name="Mug", price=2, on_hand=0, backorder_limit=2**31 - 1)
    finally:
        migrate(newest())
    assert Product.objects.get().backorder_limit == 10**9

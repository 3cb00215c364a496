"""Several warehouses: a line is given one when its order is paid, and leaves from there."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any
from unittest import mock

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import transaction
from django.urls import reverse

from inventory.domain import Line, ReferenceUsed
from inventory.locations import NotThere, Offer, first_with_enough, lock_levels, move_stock
from inventory.models import Product, StockLevel, StockLocation, StockMovement
from inventory.services import change_stock
from inventory.stocktake import CountTooLow, take_stock, with_count
from orders.audit import audit
from orders.fulfillment import ship, take_back
from orders.lifecycle import cancel, pay
from orders.models import Order, Shipment
from orders.services import checkout
from tests.factories import ProductFactory
from tests.inventory.interleaving import buyers

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def mug():
    """Nine mugs: four in the north, five in the south, which comes second."""
    product = ProductFactory.create(sku="mug", on_hand=0)
    for code, priority, units in (("north", 1, 4), ("south", 2, 5)):
        location = StockLocation.objects.create(code=code, priority=priority)
        change_stock(product, StockMovement.Kind.RECEIVED, units, f"note:{code}", location=location)
    return product


def at(code: str) -> StockLocation:
    """Return a location."""
    return StockLocation.objects.get(code=code)


def there() -> dict[str, int]:
    """Return the mugs at each location."""
    return dict(StockLevel.objects.values_list("location__code", "units"))


def bought(quantity: int) -> Order:
    """Return a paid order of mugs."""
    return pay(checkout([Line("mug", quantity)], "row_lock").pk)


def source(order: Order) -> str | None:
    """Return the code of the location that the order's item leaves from."""
    location = order.items.get().location
    return location.code if location else None


def test_a_line_leaves_from_the_first_location_that_has_it_whole(mug):
    """Three from the north; five don't fit there any more, nor in what is left: they come from the south."""
    first, second = bought(3), bought(4)
    assert (source(first), source(second)) == ("north", "south")
    for number, order in enumerate((first, second)):
        ship(order.pk, None, f"parcel-{number}")
    assert there() == {"north": 1, "south": 1}
    sources = Shipment.objects.order_by("pk").values_list("location__code", flat=True)
    assert list(sources) == ["north", "south"]
    assert audit() == []


def test_what_is_promised_to_a_line_is_not_offered_to_the_next(mug):
    """Both want four: the north has them, but for one of the orders only."""
    assert [source(bought(4)), source(bought(4))] == ["north", "south"]


def test_two_payments_at_once_do_not_promise_the_same_units(mug):
    """B waits for A's payment, and sees what that was given."""
    orders = [checkout([Line("mug", 4)], "row_lock") for _ in range(2)]
    with buyers() as start:
        a = start("A", partial(pay, orders[0].pk), "written").reaches("written")
        b = start("B", partial(pay, orders[1].pk))
        assert b.ends_or_waits() == "waits"
        a.ends()
        assert b.ends().error is None
    assert [source(order) for order in orders] == ["north", "south"]


def test_a_payment_locks_levels_as_a_shipment_does(mug):
    """By product: kept out of the mugs' level, it holds none of the pens', which is the older row."""
    StockLevel.objects.all().delete()
    pen = ProductFactory.create(sku="pen", on_hand=5)
    levels = [StockLevel.objects.create(product=each, location=at("north"), units=5) for each in (pen, mug)]
    order = checkout([Line("mug", 1), Line("pen", 1)], "row_lock")
    with buyers() as start, transaction.atomic():
        StockLevel.objects.select_for_update().get(pk=levels[1].pk)
        b = start("B", partial(pay, order.pk))
        assert b.ends_or_waits() == "waits"
        assert StockLevel.objects.select_for_update(nowait=True).get(pk=levels[0].pk)
        transaction.set_rollback(True)
    assert b.outcome.error is None


def test_a_cancelled_order_gives_its_promise_back(mug):
    """Units that never left can be promised to the next line."""
    cancel(bought(4).pk)
    assert source(bought(4)) == "north"
    assert audit() == []


def test_a_sale_asks_no_location(mug, django_assert_num_queries):
    """As many statements as in a shop without any: it is decided when the order is paid."""
    with django_assert_num_queries(6):
        checkout([Line("mug", 1)], "row_lock")


@pytest.mark.parametrize("change", ["count", "move", "ship"])
def test_units_without_a_location_are_taken_by_one_only(mug, change):
    """Two are nowhere; A has moved them and not committed: B waits, is refused, and nothing is below zero."""
    change_stock(mug, StockMovement.Kind.RECEIVED, 2, "note:nowhere")
    StockLocation.objects.update(active=False)
    order = bought(2)
    act = {
        "count": partial(change_stock, mug, StockMovement.Kind.ADJUSTED, -2, "broken"),
        "move": partial(move_stock, mug, 2, None, at("south"), "van-2"),
        "ship": partial(ship, order.pk, None, "parcel"),
    }[change]
    with buyers() as start:
        a = start("A", partial(move_stock, mug, 2, None, at("north"), "van-1"), "written").reaches("written")
        b = start("B", act)
        assert b.ends_or_waits() == "waits"
        a.ends()
        assert isinstance(b.ends().error, NotThere)
    assert (there(), audit()) == ({"north": 6, "south": 5}, [])


def test_moves_of_a_product_that_is_at_no_location_yet(mug):
    """There is no level to lock: B waits for A all the same, and finds too few."""
    pen = ProductFactory.create(sku="pen", on_hand=3)
    with buyers() as start:
        a = start("A", partial(move_stock, pen, 2, None, at("north"), "van-1"), "written").reaches("written")
        b = start("B", partial(move_stock, pen, 2, None, at("south"), "van-2"))
        assert b.ends_or_waits() == "waits"
        a.ends()
        assert isinstance(b.ends().error, NotThere)


def test_a_move_that_does_not_lock_its_product_is_found(mug, monkeypatch):
    """Mutant: both take the same two of the three pens."""
    monkeypatch.setattr("inventory.locations.lock_against_shipments", lambda _: None)
    pen = ProductFactory.create(sku="pen", on_hand=3)
    with buyers() as start:
        a = start("A", partial(move_stock, pen, 2, None, at("north"), "van-1"), "written").reaches("written")
        start("B", partial(move_stock, pen, 2, None, at("south"), "van-2")).ends()
        a.ends()
    assert [found.invariant for found in audit()] == ["levels_are_in_the_building"]


def test_a_correction_takes_no_units_that_are_elsewhere(mug):
    """All nine are at locations: where the missing ones were must be said, and nothing is changed."""
    with pytest.raises(NotThere, match="2 are to leave, and only 0 are without a location"):
        change_stock(mug, StockMovement.Kind.ADJUSTED, -2, "broken")
    assert (Product.objects.get().on_hand, audit()) == (9, [])


def test_a_return_comes_back_to_where_it_left_from(mug):
    """Four of the south, one of which is there again."""
    bought(4)
    order = bought(4)
    ship(order.pk, None, "out")
    take_back(order.pk, [Line("mug", 1)], "back")
    assert there() == {"north": 4, "south": 2}
    assert audit() == []


def test_a_return_comes_back_to_the_location_that_was_named_when_it_left(mug):
    """The line was to leave from the north and left from the south: there it is again, not in the north."""
    order = bought(2)
    ship(order.pk, None, "out", location=at("south"))
    take_back(order.pk, [Line("mug", 1)], "back")
    assert there() == {"north": 4, "south": 4}
    assert audit() == []


def test_a_return_of_several_parcels_comes_back_to_each_of_their_locations(mug):
    """Two left from the north and three from the south; four come back at once, then the fifth."""
    order = bought(5)
    ship(order.pk, [Line("mug", 2)], "out-1", location=at("north"))
    ship(order.pk, None, "out-2", location=at("south"))
    for _ in range(2):  # a form that is sent twice
        take_back(order.pk, [Line("mug", 4)], "back-1")
    assert there() == {"north": 4, "south": 4}
    assert take_back(order.pk, [Line("mug", 1)], "back-2").state == "returned"
    assert there() == {"north": 4, "south": 5}
    assert audit() == []


def test_a_location_that_lacks_the_units_ships_nothing(mug):
    """Moved away meanwhile: what is there, what is wanted and the way out are said; nothing has left."""
    order = bought(3)
    move_stock(mug, 2, at("north"), at("south"), "van-1")
    with pytest.raises(NotThere, match="3 are to leave, and only 2 are at north") as refused:
        ship(order.pk, None, "parcel")
    assert str(copy.copy(refused.value)) == str(refused.value)
    assert (Order.objects.get().state, there()) == ("paid", {"north": 2, "south": 7})
    ship(order.pk, None, "parcel", location=at("south"))
    assert (there(), audit()) == ({"north": 2, "south": 4}, [])


def test_an_inactive_location_is_given_no_line(mug):
    """What is promised already may still leave from it."""
    first = bought(1)
    StockLocation.objects.filter(code="north").update(active=False)
    assert source(bought(1)) == "south"
    assert ship(first.pk, None, "parcel").state == "shipped"


def test_a_count_that_is_too_low_says_how_many_must_be_at_the_location(mug):
    """Eight of nine are sold: three of the north's four must be there, as five are in the south."""
    checkout([Line("mug", 8)], "row_lock")
    with pytest.raises(CountTooLow, match="0 counted, and at least 3 must be there"):
        take_stock(mug, 0, reason="yearly", reference="n", location=at("north"))
    assert take_stock(mug, 3, reason="yearly", reference="n", location=at("north")).expected == 4
    assert (there(), audit()) == ({"north": 3, "south": 5}, [])


def test_another_rule_can_be_set(mug, settings):
    """STOCK_LOCATION_RULE names it; here it is the last one."""
    settings.STOCK_LOCATION_RULE = "tests.orders.test_locations.the_last"
    assert source(bought(1)) == "south"


def the_last(product, quantity, offers):
    """Choose the last location."""
    return offers[-1].location


def test_a_rule_that_cannot_be_imported_is_an_error_of_the_check(settings):
    """The name is said before an order is paid."""
    settings.STOCK_LOCATION_RULE = "shop.no_such_rule"
    with pytest.raises(SystemCheckError, match=r"shop\.no_such_rule"):
        call_command("check")


def test_the_rule_takes_the_fullest_where_none_has_enough():
    """Three, five: a line of nine leaves from the five, and the rest from wherever it is sent."""
    few, many = StockLocation(code="few"), StockLocation(code="many")
    offers = [Offer(few, 3), Offer(many, 5)]
    assert first_with_enough(Product(), 4, offers) is many
    assert first_with_enough(Product(), 3, offers) is few
    assert first_with_enough(Product(), 9, offers) is many
    assert first_with_enough(Product(), 1, []) is None


def test_a_shop_without_locations_needs_none():
    """Lines have no location, and leave all the same."""
    ProductFactory.create(sku="mug")
    order = bought(2)
    assert source(order) is None
    assert ship(order.pk, None, "parcel").state == "shipped"


def test_units_of_no_location_are_the_rest(mug):
    """Two came without one: they are counted apart, carried to the north, and no third leaves from there."""
    change_stock(mug, StockMovement.Kind.RECEIVED, 2, "note:rest")
    with pytest.raises(NotThere, match="only 2 are without a location"):
        move_stock(mug, 3, None, at("north"), "van-1")
    assert move_stock(mug, 2, None, at("north"), "van-1")
    assert not move_stock(mug, 2, None, at("north"), "van-1")
    assert there() == {"north": 6, "south": 5}
    assert with_count(Product.objects.all()).get().in_building == 11
    assert audit() == []


@pytest.mark.parametrize(("units", "source", "target"), [(1, "north", "south"), (2, "south", "north")])
def test_another_transfer_under_the_same_reference_is_refused(mug, units, source, target):
    """Other units or another way: nothing is moved, and nobody is told that it was."""
    move_stock(mug, 2, at("north"), at("south"), "van-1")
    with pytest.raises(ReferenceUsed, match="'van-1': stands for 2 units from north to south already"):
        move_stock(mug, units, at(source), at(target), "van-1")
    assert there() == {"north": 2, "south": 7}


@pytest.mark.parametrize(("units", "target"), [(0, "south"), (1, "north")])
def test_a_transfer_that_cannot_be(mug, units, target):
    """None, or from a location to itself."""
    with pytest.raises(ValueError, match="move at least 1"):
        move_stock(mug, units, at("north"), at(target), "van-1")


def test_each_location_is_counted_apart(mug):
    """Three are in the north where four must be; the south is as it was."""
    made = take_stock(mug, 3, reason="yearly", reference="n", location=at("north"))
    assert (made.expected, there()) == (4, {"north": 3, "south": 5})
    assert take_stock(mug, 0, reason="yearly", reference="rest").expected == 0
    assert (Product.objects.get().on_hand, audit()) == (8, [])


def test_a_delivery_to_the_wrong_level_is_found(mug):
    """The audit compares each level with its movements, and all of them with what is in the building."""
    StockLevel.objects.filter(location__code="north").update(units=9)
    assert [(row.invariant, row.what) for row in audit()] == [
        ("levels_are_the_sum_of_movements", "mug at north"),
        ("levels_are_in_the_building", "mug"),
    ]


@pytest.mark.parametrize("mutant", [False, True])
def test_a_count_of_the_rest_while_units_leave_a_location(mug, monkeypatch, mutant):
    """Six are at no location, two leave the north meanwhile: the count waits for them and expects six.

    Mutant: with the ledger read before the levels are locked it expects eight and writes two off.
    """
    change_stock(mug, StockMovement.Kind.RECEIVED, 6, "note:rest")
    order = bought(2)
    if mutant:
        monkeypatch.setattr("inventory.stocktake.lock_levels", lambda _: {})
        monkeypatch.setattr("inventory.stocktake.with_rest", read_one_after_the_other)
    with buyers() as start:
        a = start("A", partial(ship, order.pk, None, "parcel"), "written").reaches("written")
        count = start("count", partial(take_stock, mug, 6, reason="yearly", reference="rest"))
        assert count.ends_or_waits() == "waits"
        a.ends()
        made: Any = count.ends().result
    assert made.expected == (8 if mutant else 6)
    assert (with_count(Product.objects.all()).get().in_building == 13) is not mutant
    assert audit() == []


def read_one_after_the_other(products):
    """Annotate the rest as the sum of the ledger, less the levels of a later moment."""
    row = with_count(products).get()
    row.at_no_location = row.in_building - sum(lock_levels(row).values())
    return mock.Mock(get=lambda: row)


def test_a_shipment_of_the_rest_while_units_come_to_a_new_location(mug, monkeypatch):
    """No unit is at no location; five that come to the east between two statements don't leave from there."""
    StockLocation.objects.update(active=False)
    order = bought(5)
    east = StockLocation.objects.create(code="east")
    delivery = partial(change_stock, mug, StockMovement.Kind.RECEIVED, 5, "note:east", location=east)
    with buyers() as start:

        def lock_then_deliver(product):
            levels = lock_levels(product)
            start("delivery", delivery).ends()
            return levels

        monkeypatch.setattr("inventory.services.lock_levels", lock_then_deliver)
        shipment = start("shipment", partial(ship, order.pk, None, "parcel")).ends()
    assert isinstance(shipment.error, NotThere)
    assert (there(), audit()) == ({"north": 4, "south": 5, "east": 5}, [])


# In the admin ----------------------------------------------------------------------------------------------


def test_a_delivery_and_a_count_at_a_location(mug, admin_client):
    """The product's page takes a location and refuses to take more than is there; it is counted apart."""
    page = reverse("admin:inventory_product_change", args=[mug.pk])
    sent = {"name": "Mug", "price": "2.50", "currency": "EUR", "active": "on", "backorder_limit": "0"}
    sent |= {"movements-TOTAL_FORMS": "0", "movements-INITIAL_FORMS": "0", "cause": "van"}
    sent["location"] = str(at("north").pk)
    assert admin_client.post(page, sent | {"change_by": "2"}).status_code == 302
    assert "There are only 6." in admin_client.post(page, sent | {"change_by": "-7"}).content.decode()
    chosen = {"action": "count_products", "_selected_action": [str(mug.pk)]}
    products = reverse("admin:inventory_product_changelist")
    asked = admin_client.post(products, chosen).content.decode()
    field = f"counted-{mug.pk}-{at('north').pk}"
    assert f'name="{field}"' in asked
    confirmed = {"confirmed": "yes", "reference": "2026", "reason": "yearly", field: "5"}
    admin_client.post(products, chosen | confirmed)
    assert (there(), audit()) == ({"north": 5, "south": 5}, [])


def move_page(client, product, **answers: str) -> str:
    """Choose a product and the action that moves units; return the page that follows."""
    chosen = {"action": "move_units", "_selected_action": [str(product.pk)], **answers}
    address = reverse("admin:inventory_product_changelist")
    return str(client.post(address, chosen, follow=True).content.decode())


def confirmed(product, units: str, **answers: str) -> dict[str, str]:
    """Return the answers that move units from the north to the south."""
    field = f"move-{product.pk}-{at('north').pk}"
    return {
        "confirmed": "yes",
        "reference": "r1",
        "reason": "shelf is full",
        "target": "south",
        field: units,
        **answers,
    }


def test_units_are_moved_in_the_admin(mug, admin_client):
    """The page says what is where; what is moved is in the ledger and the history, once."""
    asked = move_page(admin_client, mug)
    assert "<td>north</td><td>4</td>" in asked.replace("\n", "").replace("  ", "")
    for _ in range(2):  # a form that is sent twice
        assert "Mug: 3 moved from north to south." in move_page(admin_client, mug, **confirmed(mug, "3"))
    assert (there(), audit()) == ({"north": 1, "south": 8}, [])
    moved = StockMovement.objects.filter(kind="moved").values_list("shipped", flat=True)
    assert sorted(moved) == [-3, 3]
    assert [str(entry) for entry in LogEntry.objects.values_list("change_message", flat=True)] == [
        "moved 3 from north to south: shelf is full"
    ]


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"units": "5"}, "Mug: only 4 are at north; nothing of it was moved."),
        ({"units": "-1"}, "&#x27;-1&#x27; is not a whole number."),
        ({"units": "1", "target": "north"}, "units are at north already"),
        ({"units": "1", "target": "east"}, "There is no location &#x27;east&#x27;"),
        ({"units": "1", "reason": " "}, "Say why: the history keeps it."),
        ({"units": ""}, "Select product to change"),
    ],
)
def test_a_move_that_cannot_be_is_explained(mug, admin_client, answers, said):
    """The page says what is wrong, and nothing is moved."""
    assert said in move_page(admin_client, mug, **confirmed(mug, **answers))
    assert (there(), audit()) == ({"north": 4, "south": 5}, [])


def test_who_may_not_move_has_no_such_action(mug, client, django_user_model):
    """A clerk who may change products only: the action isn't offered, and a request by hand does nothing."""
    clerk = django_user_model.objects.create_user("bob", is_staff=True)
    clerk.user_permissions.set(Permission.objects.filter(codename__in=["view_product", "change_product"]))
    client.force_login(clerk)
    assert "move_units" not in client.get(reverse("admin:inventory_product_changelist")).content.decode()
    move_page(client, mug, **confirmed(mug, "3"))
    assert there() == {"north": 4, "south": 5}
    clerk.user_permissions.add(Permission.objects.get(codename="move_product"))
    move_page(client, mug, **confirmed(mug, "3"))
    assert there() == {"north": 1, "south": 8}


def test_the_form_of_a_product_takes_nothing_that_is_elsewhere(mug, admin_client):
    """All nine are at locations: a change that names none is refused by the form."""
    page = reverse("admin:inventory_product_change", args=[mug.pk])
    sent = {"name": "Mug", "price": "2.50", "currency": "EUR", "active": "on", "backorder_limit": "0"}
    sent |= {"movements-TOTAL_FORMS": "0", "movements-INITIAL_FORMS": "0", "cause": "broken"}
    assert "There are only 0." in admin_client.post(page, sent | {"change_by": "-1"}).content.decode()
    assert (there(), audit()) == ({"north": 4, "south": 5}, [])

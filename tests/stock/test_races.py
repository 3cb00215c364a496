"""20 units, 200 buyers in 4 processes, one of which is killed in a sale: exactly 20, on each database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections
from django.db.models import Sum

from inventory import Busy, Stock
from inventory.models import Entry, Level, Movement
from tests.stock.buyers import Buyers, database_settings, race
from tests.stock.shop.models import Order

pytestmark = pytest.mark.whole

UNITS, PROCESSES, BUYERS = 20, 4, 50


def processes(database: str, strategy: str, cart: dict[str, int], kill_at: str) -> list[Buyers]:
    """Return the race's processes; the last one is killed."""
    found = database_settings(database)
    return [
        Buyers(
            database, found, strategy, no * BUYERS, BUYERS, 5, cart, kill_at if no == PROCESSES - 1 else ""
        )
        for no in range(PROCESSES)
    ]


def assert_exactly_sold(database: str, sku: str, units: int) -> None:
    """Check level, ledger and the shop's own orders against each other."""
    (level,) = Stock(database=database).levels(sku)
    assert (level.available, level.reserved, level.committed) == (0, 0, units)
    sold = Movement.objects.using(database).filter(level=level, source=1, target=3)
    assert sold.aggregate(Sum("quantity")) == {"quantity__sum": units}
    sales = Entry.objects.using(database).filter(kind=Entry.Kind.SELL).values_list("cause", flat=True)
    orders = Order.objects.using(database).values_list("reference", flat=True)
    assert sorted(sales) == sorted(orders)


@pytest.mark.parametrize(
    ("strategy", "kill_at"),
    [("", "decided"), ("conditional_update", "recorded"), ("write_first", "decided"),
     ("locked", "locked"), ("combined", "decided"), ("redis_gate", "recorded")],
)  # fmt: skip
def test_exactly_what_there_was_is_sold(committing: str, strategy: str, kill_at: str) -> None:
    stock = Stock(database=committing)
    stock.receive("mug", UNITS, cause="po-1")
    answers = race(processes(committing, strategy, {"mug": 1}, kill_at))
    assert_exactly_sold(committing, "mug", UNITS)
    assert UNITS - 3 <= answers.count("sold") <= UNITS
    assert len(answers) >= (PROCESSES - 1) * BUYERS


def test_carts_of_two_items_never_wait_for_each_other_in_a_circle(committing: str) -> None:
    stock = Stock(database=committing)
    stock.receive({"mug": UNITS, "pen": UNITS}, cause="po-1")
    found = processes(committing, "conditional_update", {"mug": 1, "pen": 1}, "recorded")
    answers = race(found)
    assert_exactly_sold(committing, "mug", UNITS)
    assert_exactly_sold(committing, "pen", UNITS)
    assert answers.count("sold") <= UNITS


def test_parcels_of_many_sales_leave_at_once(committing: str) -> None:
    stock = Stock(database=committing)
    sales = 40
    stock.receive({f"mug-{no}": 5 for no in range(sales)}, cause="po-1")
    for no in range(sales):
        stock.sell({f"mug-{no}": 2}, cause=f"order-{no}")

    def ship(no: int) -> int:
        busy = 0
        try:
            while True:
                try:
                    stock.ship(cause=f"parcel-{no}", of=f"order-{no}")
                except Busy:
                    busy += 1
                else:
                    return busy
        finally:
            connections[committing].close()

    with ThreadPoolExecutor(8) as pool:
        busy = sum(pool.map(ship, range(sales)))
    print(f"{busy} of {sales} parcels were refused as busy and repeated")
    levels = Level.objects.using(committing).values_list("available", "committed")
    assert set(levels) == {(3, 0)}

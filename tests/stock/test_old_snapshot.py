"""A transaction that began to read before others committed decides by what is there now.

MySQL and MariaDB show it the database as it was at its first read (REPEATABLE READ).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections, transaction

from inventory import NotThere, ReservationGone, SoldOut, Stock
from inventory.models import Entry
from tests.stock.conftest import on
from tests.stock.test_verbs import balances

SERVERS = on("default", "mariadb", transaction=True)


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> str:
    """The databases in which a reader doesn't keep a writer out."""
    return str(request.param)


def meanwhile(database: str, work: Callable[[], object]) -> None:
    """Do it in another connection, committed on return."""

    def run() -> None:
        try:
            work()
        finally:
            connections[database].close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result()


def test_a_sale_sees_what_others_sold_since(server: str) -> None:
    stock = Stock(database=server)
    stock.receive("mug", 2, cause="po-1")
    with transaction.atomic(using=server):
        assert not Entry.objects.using(server).filter(cause="o-1").exists()  # from here on it reads the past
        meanwhile(server, lambda: stock.sell({"mug": 2}, cause="o-1"))
        with pytest.raises(SoldOut):
            stock.sell({"mug": 1}, cause="o-2")
        assert stock.sell({"mug": 2}, cause="o-1").repeated
    assert balances(stock) == (0, 0, 2, 0)


def test_a_sale_is_not_shipped_twice(server: str) -> None:
    stock = Stock(database=server)
    stock.receive("mug", 2, cause="po-1")
    stock.sell({"mug": 2}, cause="o-1")
    with transaction.atomic(using=server):
        assert Entry.objects.using(server).count() == 2
        meanwhile(server, lambda: stock.ship(cause="p-1", of="o-1"))
        with pytest.raises(NotThere):
            stock.ship(cause="p-2", of="o-1")
        with pytest.raises(NotThere):
            stock.cancel(cause="c-1", of="o-1")
        assert stock.ship(cause="p-1", of="o-1").repeated
        stock.restock("mug", 2, cause="r-1", of="o-1")
    assert balances(stock) == (2, 0, 0, 0)


def test_a_reservation_made_since_is_sold_with_its_lines(server: str) -> None:
    stock = Stock(database=server)
    stock.receive("mug", 2, cause="po-1")
    made = []
    with transaction.atomic(using=server):
        assert Entry.objects.using(server).count() == 1
        meanwhile(server, lambda: made.append(stock.reserve({"mug": 2}, seconds=900)))
        made[0].sell(cause="o-1")
        with pytest.raises(ReservationGone):
            made[0].release()
    assert balances(stock) == (0, 0, 2, 0)

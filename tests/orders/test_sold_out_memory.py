"""What is sold out is refused from memory: what ends it, and that nothing else can keep it too long."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test import Client

from inventory import reservations
from inventory import sold_out_memory as module
from inventory.domain import Line, Shortage, SoldOut
from inventory.models import Product, StockMovement, StockReservation
from inventory.services import change_stock
from inventory.sold_out_memory import IDLE_SECONDS, Level, SoldOutMemory, sold_out_memory
from orders.lifecycle import cancel
from orders.models import Order
from orders.services import checkout
from tests.factories import ProductFactory
from tests.inventory.interleaving import eventually

BOUND = 0.25
CART = [Line("mug", 1)]


class FakeDatabase:
    """A connection whose looks find what the test says, and during which things happen."""

    def __init__(self, **levels: int) -> None:
        self.levels = levels
        self.expires: float | None = None
        self.meanwhile: Callable[[], None] = lambda: None
        self.announced: list[Any] = []
        self.lost = False

    def execute(self, statement: str, values: Any) -> Any:
        """Look."""
        rows = [(sku, self.levels[sku], self.expires) for sku in values[0] if sku in self.levels]
        self.meanwhile()
        return SimpleNamespace(fetchall=lambda: rows)

    def notifies(self, timeout: float) -> list[Any]:
        """Give what was announced, or lose the connection."""
        if self.lost:
            raise OSError("the connection was lost")
        announced, self.announced = self.announced, []
        return announced


@pytest.fixture
def clock(monkeypatch):
    """The clock by which memories grow old; it stands until a test turns it."""
    times = [1000.0]
    monkeypatch.setattr(module, "monotonic", lambda: times[0])
    return times


@pytest.fixture
def bound(settings):
    """A stated time."""
    settings.SOLD_OUT_MEMORY = BOUND
    return BOUND


def looked(kind: type[SoldOutMemory], database: FakeDatabase) -> SoldOutMemory:
    """Return a memory that has looked once at what it watches."""
    memory = kind()
    memory._watched = dict.fromkeys(database.levels, 1000.0)
    memory.look(database)
    return memory


def news(sku: str) -> Any:
    """Return PostgreSQL's announcement."""
    return SimpleNamespace(payload=sku)


# The rules, and what breaks them ---------------------------------------------------------------------------


def ends_with_its_time(kind: type[SoldOutMemory], clock: list[float]) -> None:
    """What a look found counts for the stated time, and not a moment longer."""
    memory = looked(kind, FakeDatabase(mug=0))
    clock[0] += BOUND - 0.001
    assert memory.shortages(CART) == [Shortage("mug", 1, 0)]
    clock[0] += 0.001
    assert not memory.shortages(CART)


def counts_from_before_the_look(kind: type[SoldOutMemory], clock: list[float]) -> None:
    """A look takes as long as the stated time: stock may have come back right behind its beginning."""
    database = FakeDatabase(mug=0)
    database.meanwhile = lambda: clock.__setitem__(0, clock[0] + BOUND)
    assert not looked(kind, database).shortages(CART)


def ends_with_an_announcement(kind: type[SoldOutMemory], clock: list[float]) -> None:
    """Stock comes back: it is forgotten at once, and other products are not."""
    memory, database = kind(), FakeDatabase(mug=0, pen=0)
    memory._watched = dict.fromkeys(database.levels, 1000.0)
    database.announced.append(news("mug"))
    memory.step(database)
    assert not memory.shortages(CART)
    assert memory.shortages([Line("pen", 1)])


def hears_an_announcement_during_the_look(kind: type[SoldOutMemory], clock: list[float]) -> None:
    """Stock comes back after the look's snapshot and before its answer: what it read counts for nothing."""
    memory, database = kind(), FakeDatabase(mug=0)
    memory._watched = {"mug": 1000.0}
    database.meanwhile = lambda: database.announced.append(news("mug"))
    memory.step(database)
    assert not memory.shortages(CART)


def ends_with_a_reservation(kind: type[SoldOutMemory], clock: list[float]) -> None:
    """A reservation expires sooner than the stated time: so does the memory."""
    database = FakeDatabase(mug=0)
    database.expires = 0.1
    memory = looked(kind, database)
    clock[0] += 0.1
    assert not memory.shortages(CART)


def ends_with_the_connection(kind: type[SoldOutMemory], clock: list[float]) -> None:
    """The listener's connection is lost: nothing is known, and for a moment nothing is watched."""
    memory, database = kind(), FakeDatabase(mug=0)
    memory._watched = {"mug": 1000.0}
    database.lost = True
    with mock.patch.object(module, "listening", return_value=nullcontext(database)):
        memory._run()
    assert not memory.shortages(CART)
    memory.watch(["mug"])
    assert memory._thread is None


def leaves_other_carts_alone(kind: type[SoldOutMemory], clock: list[float]) -> None:
    """Carts with an unknown product, or that want no more than there is, are asked about."""
    memory = looked(kind, FakeDatabase(mug=2))
    assert not memory.shortages([Line("mug", 2)])
    assert not memory.shortages([Line("mug", 3), Line("pen", 1)])
    assert memory.shortages([Line("mug", 3)]) == [Shortage("mug", 3, 2)]


def clock_of(where: Any) -> Any:
    """Return the clock that the memory looks at."""
    return where.monotonic


class Endless(SoldOutMemory):
    """What was found counts until an announcement."""

    def look(self, database):
        super().look(database)
        self._levels = {sku: level._replace(until=1e9) for sku, level in self._levels.items()}


class CountsFromTheAnswer(SoldOutMemory):
    """The time begins when the look is answered."""

    def look(self, database):
        super().look(database)
        self._levels = {
            sku: level._replace(until=clock_of(module)() + BOUND) for sku, level in self._levels.items()
        }


class Deaf(SoldOutMemory):
    """Announcements are ignored."""

    def step(self, database):
        self.look(database)


class HearsBeforeTheLook(SoldOutMemory):
    """An announcement in the middle of a look is gone when its answer comes."""

    def step(self, database):
        super().step(database)
        self._levels = {"mug": Level(0, 1e9)}


class IgnoresExpiry(SoldOutMemory):
    """A reservation's end doesn't count."""

    def look(self, database):
        database.expires = None
        super().look(database)


class OutlivesItsConnection(SoldOutMemory):
    """What was known stays known."""

    def _forget_all(self):
        self._thread = None


class GuessesTheRest(SoldOutMemory):
    """A cart is refused for its first known line."""

    def shortages(self, cart):
        return super().shortages(cart[:1])


RULES = [
    (ends_with_its_time, Endless),
    (counts_from_before_the_look, CountsFromTheAnswer),
    (ends_with_an_announcement, Deaf),
    (hears_an_announcement_during_the_look, HearsBeforeTheLook),
    (ends_with_a_reservation, IgnoresExpiry),
    (ends_with_the_connection, OutlivesItsConnection),
    (leaves_other_carts_alone, GuessesTheRest),
]


@pytest.mark.usefixtures("bound")
@pytest.mark.parametrize("rule", [rule for rule, _ in RULES], ids=lambda rule: rule.__name__)
def test_memory(rule, clock):
    """Each rule holds, in an order of events that the test decides."""
    rule(SoldOutMemory, clock)


@pytest.mark.usefixtures("bound")
@pytest.mark.parametrize(("rule", "mutant"), RULES, ids=lambda given: given.__name__)
def test_a_mutant_is_refused(rule, mutant, clock):
    """With the rule taken out its check fails."""
    with pytest.raises(AssertionError):
        rule(mutant, clock)


def test_products_nobody_asks_for_are_watched_no_more(clock):
    """After a while without a buyer the thread has nothing left to watch, and ends."""
    memory = SoldOutMemory()
    memory._watched = {"mug": clock[0]}
    clock[0] += IDLE_SECONDS + 0.1
    assert not memory._forget_idle()


def test_memory_is_bounded_and_leaves_the_lab_alone(bound, monkeypatch):
    """Not more products than the bound, and none whose strategies a lab compares."""
    memory = SoldOutMemory()
    monkeypatch.setattr(module, "MOST", 2)
    monkeypatch.setattr("threading.Thread.start", lambda thread: None)
    memory.watch(["lab-1", "a", "b", "c"])
    assert set(memory._watched) == {"a", "b"}


# With the database -----------------------------------------------------------------------------------------


@pytest.fixture
def remembered(settings, transactional_db):
    """A shop that has refused a mug and remembers it for so long that only an announcement can end that."""
    settings.SOLD_OUT_MEMORY = 600.0
    settings.CHECKOUT_STRATEGY = "row_lock"
    ProductFactory.create(sku="mug", on_hand=1)
    order = buy()
    refuse()
    eventually(lambda: "mug" in sold_out_memory._levels, "the mug is known to be sold out")
    yield order
    sold_out_memory.stop()


def buy() -> Order:
    """Buy one."""
    return checkout(CART)


def refuse() -> SoldOut:
    """Be refused one."""
    with pytest.raises(SoldOut) as refused:
        buy()
    return refused.value


def mug() -> Product:
    """Return the product."""
    return Product.objects.get(sku="mug")


def test_the_second_buyer_is_refused_without_a_question(remembered, django_assert_num_queries):
    """The same answer as the database's, and not one statement."""
    with django_assert_num_queries(0):
        refused = refuse()
    assert refused.shortages == (Shortage("mug", 1, 0),)


COMEBACKS: dict[str, Callable[[Order], object]] = {
    "a delivery": lambda order: change_stock(mug(), StockMovement.Kind.RECEIVED, 1, "delivery"),
    "a cancellation": lambda order: cancel(order.pk),
    "an operator's SQL": lambda order: connection.cursor().execute(
        "UPDATE inventory_product SET on_hand = on_hand + 1"
    ),
}


@pytest.mark.parametrize("comeback", COMEBACKS.values(), ids=COMEBACKS)
def test_stock_that_comes_back_is_sold_at_once(remembered, comeback):
    """However it comes back: the database announces it to every process."""
    comeback(remembered)
    eventually(lambda: "mug" not in sold_out_memory._levels, "it is heard of")
    assert buy().pk


def test_a_reservation_that_ends_is_announced(remembered):
    """The last unit was reserved: when the reservation is released, it is sold."""
    change_stock(mug(), StockMovement.Kind.RECEIVED, 1, "delivery")
    eventually(lambda: "mug" not in sold_out_memory._levels, "the delivery is heard of")
    basket = reservations.reserve(CART, timedelta(hours=1)).basket
    sold_out_memory.stop()
    refuse()
    eventually(lambda: "mug" in sold_out_memory._levels, "the mug is known to be promised")
    reservations.release(basket)
    eventually(lambda: "mug" not in sold_out_memory._levels, "the release is heard of")
    assert buy().pk


def test_a_reservation_that_has_run_out_counts_as_available(remembered):
    """Nobody has swept it up yet: the look counts its units, and the buyer gets one."""
    change_stock(mug(), StockMovement.Kind.RECEIVED, 1, "delivery")
    reservations.reserve(CART, timedelta(hours=1))
    StockReservation.objects.update(expires_at=Now() - timedelta(seconds=1))
    sold_out_memory.stop()
    sold_out_memory.watch(["mug"])
    eventually(lambda: "mug" in sold_out_memory._levels, "the mug is looked at")
    assert not sold_out_memory.shortages(CART)
    assert buy().pk


def test_a_listener_that_is_cut_off_knows_nothing(remembered):
    """Its connection is ended by the server: all is forgotten, and buyers ask again."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%AS promise%'"
        )
        assert cursor.rowcount == 1
    eventually(lambda: not sold_out_memory._levels, "the loss is noticed")
    Product.objects.update(on_hand=1)
    assert buy().pk


def test_sales_announce_nothing(remembered):
    """Only stock that comes back is announced: a rush is not heard of by every process."""
    ProductFactory.create(sku="pen", on_hand=5)
    with module.listening() as listener:
        checkout([Line("pen", 1)])
        change_stock(mug(), StockMovement.Kind.RECEIVED, 1, "delivery")
        assert [news.payload for news in listener.notifies(timeout=30, stop_after=1)] == ["mug"]


def test_the_answer_is_the_same_through_http(remembered, django_assert_num_queries):
    """409 with the shortages, from memory as from the database."""

    def post() -> Any:
        body = json.dumps({"lines": [{"sku": "mug", "quantity": 1}]})
        return Client().post("/checkout/", body, content_type="application/json")

    with django_assert_num_queries(0):
        remembered = post()
    sold_out_memory.stop()
    asked = post()
    assert (remembered.status_code, remembered.json()) == (asked.status_code, asked.json())
    assert asked.status_code == 409


def test_by_default_nothing_is_remembered(settings, transactional_db):
    """Each buyer hears of the stock as it is."""
    settings.SOLD_OUT_MEMORY = 0.0
    ProductFactory.create(sku="mug", on_hand=0)
    refuse()
    Product.objects.update(on_hand=1)
    assert buy().pk


def test_a_thread_that_cannot_start_costs_no_buyer_an_answer(settings, monkeypatch):
    """At the limit of threads each refused buyer is told by the database; the next one starts the thread."""
    settings.SOLD_OUT_MEMORY = 60.0
    memory, started = SoldOutMemory(), []

    def refused(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("threading.Thread.start", refused)
        memory.watch(["mug"])
    monkeypatch.setattr("threading.Thread.start", lambda thread: started.append(thread.name))
    memory.watch(["mug"])
    assert started == ["sold-out-memory"]

"""A batch of `combined`, step by step: the leader's work is called with tickets."""

import threading
from functools import partial

import pytest
from django.db import IntegrityError, connection, transaction

from inventory import CauseUsed, Shortage, SoldOut, Stock
from inventory.group_commit import GroupCommit, Ticket
from inventory.hooks import installed
from inventory.ledger import Kind, Wanted
from inventory.lines import read_lines
from inventory.models import Entry
from inventory.strategies import combined
from inventory.strategies.base import Sale
from inventory.strategies.combined import STEADY, Combined
from inventory.testing import race_threads
from tests.stock.shop.models import Order

pytestmark = pytest.mark.django_db(transaction=True)
stock = Stock(strategy="combined")


def sell_batch(batch):
    stock.strategy.sell_batch(batch)  # type: ignore[attr-defined]


def place(lines):
    return Order.objects.create(reference=lines.cause)


def ticket(cause, lines, write=place, write_many=None):
    wanted = Wanted(cause, Kind.SELL, read_lines(lines))
    return Ticket(Sale(stock, wanted, write=None if write_many else write, write_many=write_many))


def orders():
    return set(Order.objects.values_list("reference", flat=True))


def test_a_batch_is_decided_in_turn():
    """A cart that is short is refused, and those behind it are served from what it would have taken."""
    stock.receive({"mug": 3, "pen": 1}, cause="in")
    batch = [
        ticket("a", {"mug": 2}),
        ticket("b", {"mug": 2}),
        ticket("c", {"mug": 1}),
        ticket("d", {"pen": 2}),
    ]
    sell_batch(batch)
    assert [type(each.error) for each in batch] == [type(None), SoldOut, type(None), SoldOut]
    assert orders() == {"a", "c"}
    assert stock.available(["mug", "pen"]) == {"mug": 0, "pen": 1}


def test_one_that_is_short_on_another_line_keeps_nothing_from_those_behind_it():
    """A cart that looked servable alone and is short beside others is decided again without them."""
    stock.receive({"mug": 2, "pen": 1}, cause="in")
    batch = [ticket("a", {"pen": 1}), ticket("b", {"pen": 1, "mug": 2}), ticket("c", {"mug": 2})]
    sell_batch(batch)
    assert [type(each.error) for each in batch] == [type(None), SoldOut, type(None)]
    assert batch[1].error.shortages == (Shortage("pen", 1, 0),)
    assert orders() == {"a", "c"}


def test_a_cause_twice_in_a_batch_is_one_sale():
    """Both callers get the one order, and units are taken once."""
    stock.receive("mug", 5, cause="in")
    batch = [ticket("a", {"mug": 1}), ticket("a", {"mug": 1}), ticket("a", {"mug": 2})]
    sell_batch(batch)
    assert batch[0].sale.value == batch[1].sale.value == Order.objects.get()
    assert isinstance(batch[2].error, CauseUsed)
    assert stock.available("mug") == 4


def test_one_that_cannot_be_written_is_refused_alone():
    """The others of its batch are sold, each in a savepoint."""
    stock.receive("mug", 5, cause="in")
    Order.objects.create(reference="b")
    batch = [ticket(cause, {"mug": 1}) for cause in "abc"]
    sell_batch(batch)
    assert [type(each.error) for each in batch] == [type(None), IntegrityError, type(None)]
    assert stock.available("mug") == 3


def test_write_many_is_called_once():
    """It gets the lines of all that are served, with their causes, and its values are theirs."""
    stock.receive("mug", 2, cause="in")
    calls = []

    def write_many(sales):
        calls.append([(lines.cause, dict(lines)) for lines in sales])
        return [place(lines) for lines in sales]

    batch = [ticket(cause, {"mug": 1}, write_many=write_many) for cause in "abc"]
    sell_batch(batch)
    assert calls == [[("a", {"mug": 1}), ("b", {"mug": 1})]]
    assert [each.sale.value and each.sale.value.reference for each in batch] == ["a", "b", None]
    again = ticket("a", {"mug": 1}, write_many=write_many)
    sell_batch([again])
    assert (again.sale.value.reference, len(calls)) == ("a", 1)


def test_a_locked_level_keeps_nothing_from_buyers_of_others():
    """While the mugs' level is locked, the buyer of pens is served and the buyer of mugs sells alone."""
    stock.receive({"mug": 3, "pen": 3}, cause="in")
    locked, done = threading.Event(), threading.Event()

    def hold():
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT * FROM inventory_level ORDER BY id FOR UPDATE LIMIT 1")
            locked.set()
            assert done.wait(30)

    def buy():
        assert locked.wait(30)
        batch = [ticket("a", {"mug": 1}), ticket("b", {"pen": 1})]
        sell_batch(batch)
        done.set()
        return [(each.alone, each.error) for each in batch]

    _, outcome = race_threads([hold, buy])
    assert outcome == [(True, None), (False, None)]
    assert orders() == {"b"}


def test_who_has_to_sell_alone_does():
    """A buyer whose level stayed locked waits for it in its own transaction, and is sold."""
    stock.receive("mug", 3, cause="in")
    locked, done = threading.Event(), threading.Event()

    def hold():
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT * FROM inventory_level FOR UPDATE")
            locked.set()
            assert done.wait(30)

    def buy():
        assert locked.wait(30)
        threading.Timer(0.3, done.set).start()
        return stock.sell({"mug": 1}, cause="a", write=place)

    assert race_threads([hold, buy])[1].reference == "a"


def test_a_leader_that_is_stopped_answers_its_followers():
    """A signal ends the leader before the commit: followers hear Busy, and none waits forever."""
    stock.receive("mug", 3, cause="in")
    working, both_wait = threading.Event(), threading.Event()

    def work(batch):
        if len(batch) == 1:
            working.set()
            assert both_wait.wait(30)
            return
        raise KeyboardInterrupt

    group = GroupCommit(work)

    def submit(cause):
        if cause != "a":
            assert working.wait(30)
        try:
            return group.submit(ticket(cause, {"mug": 1}).sale, 30)
        except KeyboardInterrupt as stopped:
            return stopped

    def watch():
        assert working.wait(30)
        while len(group._queue) < 2:
            pass
        both_wait.set()

    results = race_threads([*(partial(submit, cause) for cause in "abc"), watch])
    assert isinstance(results[0], Ticket)
    assert {type(each).__name__ for each in results[1:3]} == {"KeyboardInterrupt", "Busy"}
    assert (group._queue, group._led) == ([], False)


def test_a_sale_whose_order_is_missing_is_refused():
    """A write_many that returns too few values is refused, and nothing is sold."""
    stock.receive("mug", 3, cause="in")
    with pytest.raises(ValueError, match="zip"):
        stock.sell({"mug": 1}, cause="a", write_many=lambda sales: [])
    assert not Entry.objects.filter(kind=Kind.SELL).exists()


def test_a_stock_made_for_each_sale_sells_in_the_same_batches():
    """The strategy belongs to the process and the alias; one per `Stock` would commit each sale alone."""
    assert Stock(strategy="combined").strategy is stock.strategy
    assert Stock().strategy is not stock.strategy


# Written first.


@pytest.fixture
def steady():
    """One that has just sold so many batches whole that it writes the next one first."""
    strategy = Combined(stock.settings, write_first=True)
    strategy._sold_whole = STEADY
    return strategy


def steps_of(strategy, batch):
    """Sell to a batch; return the steps that it went through."""
    steps = []

    def note(name: str, /, **facts: object) -> None:
        steps.append(name)

    with installed(note):
        strategy.sell_batch(batch)
    return [step for step in steps if step in ("decided", "recorded")]


def test_batches_are_written_first_once_they_are_sold_whole():
    """So many as were sold before, the units are taken first."""
    stock.receive("mug", STEADY + 1, cause="in")
    strategy = Combined(stock.settings, write_first=True)
    for number in range(STEADY):
        assert steps_of(strategy, [ticket(str(number), {"mug": 1})])[0] == "decided"
    assert steps_of(strategy, [ticket("last", {"mug": 1})])[0] == "recorded"
    assert (len(orders()), stock.available("mug")) == (STEADY + 1, 0)


def test_only_where_it_is_asked_for():
    """Without the option the units are always taken first."""
    stock.receive("mug", 1, cause="in")
    strategy = Combined(stock.settings)
    strategy._sold_whole = STEADY
    assert steps_of(strategy, [ticket("a", {"mug": 1})])[0] == "decided"


def sells_no_more_than_there_is(strategy):
    """Of three that are written one is short; it is refused, and its order isn't there."""
    stock.receive("mug", 3, cause="in")
    batch = [ticket("a", {"mug": 1}), ticket("b", {"mug": 3}), ticket("c", {"mug": 2})]
    strategy.sell_batch(batch)
    assert [type(each.error) for each in batch] == [type(None), SoldOut, type(None)]
    assert batch[1].error.shortages == (Shortage("mug", 3, 2),)
    assert orders() == {"a", "c"}
    assert stock.available("mug") == 0
    assert strategy._sold_whole == 0


def test_one_that_is_short_is_refused_though_it_was_written(steady):
    sells_no_more_than_there_is(steady)


def test_a_batch_that_keeps_what_is_short_is_found_out(steady, monkeypatch):
    """The mutant commits what it has written, whatever was taken."""
    monkeypatch.setattr(combined, "all", lambda found: True, raising=False)
    with pytest.raises(AssertionError):
        sells_no_more_than_there_is(steady)


def test_a_repeated_sale_gets_the_first_ones_order(steady):
    """It is written in vain, rolled back, and answered as the first time; the others are sold."""
    stock.receive("mug", 5, cause="in")
    first = ticket("a", {"mug": 1}, write=lambda lines: Order.objects.create(reference="first").pk)
    steady.sell_batch([first])
    steady._sold_whole = STEADY
    again = [ticket("b", {"mug": 1}), ticket("a", {"mug": 1}), ticket("a", {"mug": 2})]
    steady.sell_batch(again)
    assert again[1].sale.value == first.sale.value
    assert [type(each.error) for each in again] == [type(None), type(None), CauseUsed]
    assert (orders(), stock.available("mug")) == ({"first", "b"}, 3)


def test_a_cause_twice_in_a_batch_that_is_written_first_is_one_sale(steady):
    stock.receive("mug", 5, cause="in")
    batch = [ticket("a", {"mug": 1}), ticket("a", {"mug": 1})]
    steady.sell_batch(batch)
    assert batch[0].sale.value == batch[1].sale.value == Order.objects.get()
    assert stock.available("mug") == 4


def test_one_that_cannot_be_written_first_is_refused_alone(steady):
    stock.receive({"mug": 5, "pen": 1}, cause="in")
    Order.objects.create(reference="b")
    batch = [ticket("a", {"mug": 1, "pen": 1}), ticket("b", {"mug": 1}), ticket("c", {"mug": 1})]
    steady.sell_batch(batch)
    assert [type(each.error) for each in batch] == [type(None), IntegrityError, type(None)]
    assert stock.available(["mug", "pen"]) == {"mug": 3, "pen": 0}


def test_rows_locked_in_another_order_are_waited_for_once(steady):
    """Who holds the level and waits for what was written gets it: the batch gives way, and is sold then."""
    stock.receive("mug", 3, cause="in")
    Order.objects.create(reference="shared")
    locked, written = threading.Event(), threading.Event()

    def lock_shared():
        return list(Order.objects.select_for_update().filter(reference="shared"))

    def level_first():
        with transaction.atomic():
            stock.sell({"mug": 1}, cause="other")
            locked.set()
            assert written.wait(30)
            return lock_shared()

    def write(lines):
        lock_shared()
        written.set()
        return place(lines)

    def written_first():
        assert locked.wait(30)
        batch = [ticket("a", {"mug": 1}, write=write)]
        steady.sell_batch(batch)
        return batch[0].error

    assert race_threads([level_first, written_first])[1] is None
    assert stock.available("mug") == 1

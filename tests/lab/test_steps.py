"""Two buyers, step by step: what is seen of each, for whom one waits, and what the terminal makes of it."""

import os
import threading

import pytest
from django.core.management import CommandError, call_command
from rich.console import Console

from locking import get_lock
from locking.inspection import deadlocks
from orders.lab.models import Product
from orders.lab.pages.stepping import Session
from orders.lab.pages.terminal import walk
from orders.lab.race import lab_products
from orders.lab.strategies import STRATEGIES
from tests.locking.support.helpers import publishing
from tests.support import processes

PATIENCE = 60.0

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def session():
    """Begin a session before the last piece."""
    with lab_products.race_in_progress() as race:

        def begin(strategy):
            products = lab_products.stock_up_cart(race, 1, strategy, 1)
            return Session([product.sku for product in products], strategy)

        yield begin


def until(session, condition):
    """The first snapshot that meets the condition."""
    return processes.until(lambda: condition(seen := session.snapshot()) and seen)


def arrive(session, who, *, at=None):
    """Lead a buyer on until it is at a checkpoint (or is done, without one)."""
    while True:
        seen = until(session, lambda seen: seen["lanes"][who]["state"] in ("parked", "done"))
        lane = seen["lanes"][who]
        if lane["state"] == "done" or (lane["marks"] and lane["marks"][-1][0] == at):
            return seen
        session.advance(who)
        until(session, lambda seen, before=lane: seen["lanes"][who] != before)


def test_a_broken_strategy_sells_the_last_piece_twice(session):
    """Both decide before either writes: two are sold, and the shelf says none are left."""
    with session("lost_update") as steps:
        arrive(steps, "A", at="decided")
        seen = arrive(steps, "B", at="decided")
        assert seen["lanes"]["A"]["marks"][0][:2] == ["read", 1]
        assert all(line for _, _, line in seen["lanes"]["A"]["marks"])
        arrive(steps, "A")
        seen = arrive(steps, "B")
        assert steps.over
        assert (seen["sold"], seen["left"]) == (2, 0)
        assert {lane["answer"] for lane in seen["lanes"].values()} == {"sold"}


@pytest.mark.parametrize(("strategy", "on"), [("row_lock", "row"), ("redis_lock", "lock")])
def test_a_blocked_buyer_says_for_whom_it_waits(session, strategy, on):
    """PostgreSQL tells who has the row, the marks tell who has the lock; then the wait ends by itself."""
    with session(strategy) as steps:
        arrive(steps, "A", at="decided")
        arrive(steps, "B", at="waiting")
        steps.advance("B")
        seen = until(steps, lambda seen: seen["lanes"]["B"]["blocked"])
        assert seen["lanes"]["B"]["blocked"] == {"by": "A", "on": on}
        arrive(steps, "A")
        seen = arrive(steps, "B")
        assert (seen["sold"], seen["left"]) == (1, 0)
        assert seen["lanes"]["B"]["answer"] == "refused"


def test_who_waits_for_each_other_is_reported_by_the_database(session):
    """Two baskets locked in two orders: the database ends one buyer, and nothing is oversold."""
    with session("unsorted_locks") as steps:
        for who in "AB":
            arrive(steps, who, at="decided")
        for who in "AB":  # each to the door of the row that the other one has
            arrive(steps, who, at="waiting")
        for who in "AB":
            steps.advance(who)
        seen = until(steps, lambda seen: "deadlocked" in str(seen))
        assert seen["sold"] == 0


@pytest.fixture
def may_be_found(monkeypatch):
    """No search finds a circle before this event is set, however late the test looks at those who wait.

    Nor does a waiter give up before: a circle that the first look misses is found by a later one.
    """
    monkeypatch.setattr(STRATEGIES["unsorted_redis_locks"], "wait", PATIENCE)
    event, circle = threading.Event(), deadlocks.Search.circle
    monkeypatch.setattr(deadlocks.Search, "circle", lambda search: circle(search) if event.is_set() else None)
    return event


def test_a_deadlock_of_distributed_locks_is_found_and_shown(session, may_be_found):
    """Both say for whom they wait; then one is refused with who holds what, and the other buys."""
    with publishing(), session("unsorted_redis_locks") as steps:
        for who in "AB":
            arrive(steps, who, at="decided")
        for who in "AB":  # each to the lock that the other one has
            arrive(steps, who, at="waiting")
        for who in "AB":
            steps.advance(who)
        seen = until(steps, lambda seen: all(lane["blocked"] for lane in seen["lanes"].values()))
        assert [seen["lanes"][who]["blocked"]["by"] for who in "AB"] == ["B", "A"]
        may_be_found.set()
        seen = until(steps, lambda seen: "deadlocked" in str(seen))
        (victim,) = [who for who in "AB" if "deadlocked" in str(seen["lanes"][who])]
        steps.advance(victim)
        seen = until(steps, lambda seen: any(lane["problem"] for lane in seen["lanes"].values()))
        (reported,) = [lane["problem"] for lane in seen["lanes"].values() if lane["problem"]]
        assert "deadlock" in reported
        assert reported.count("and waits for") == 2
        assert seen["sold"] == 0


def test_a_stopped_session_leaves_nothing_behind(session):
    """A session that is left in the middle of two sales gives lock, row and connection back."""
    with session("redis_lock") as steps:
        arrive(steps, "A", at="written")
        steps.advance("stop")
        until(steps, lambda seen: steps.over)
    sku = Product.objects.get().sku
    assert Product.objects.get().on_hand == 1
    assert not get_lock(f"lab:sku:{sku}").locked()


def pressed(keys):
    """A pipe with these keys in it, ended."""
    read, write = os.pipe()
    os.write(write, keys.encode())
    os.close(write)
    return os.fdopen(read)


def test_the_terminal_tells_the_same_story():
    """Keys lead the buyers on; anyone who is on its way gets its key when it has arrived."""
    console = Console(record=True, width=120, file=open(os.devnull, "w"))  # noqa: SIM115
    with pressed("aabbaaaaaabbbbbb") as keys:
        assert walk("lost_update", console, keys) is True
    text = console.export_text()
    assert "A  read 1, line" in text
    assert "sold 2 of 1" in text
    assert "You did it" in text
    console.file.close()


def test_the_end_of_the_keys_sends_both_home(capsys):
    """A terminal that is closed in mid-sale sells nothing and leaves nothing."""
    console = Console(record=True, width=120, file=open(os.devnull, "w"))  # noqa: SIM115
    with pressed("aab") as keys:
        assert walk("row_lock", console, keys) is False
    assert "sold 0 of 1" in console.export_text()
    assert not Product.objects.exists()
    console.file.close()


def test_steps_need_one_strategy():
    """`all` can't be stepped through, and the refusal says what to write."""
    with pytest.raises(CommandError, match="add --strategy lost_update") as refusal:
        call_command("oversell", "--step")
    assert refusal.value.returncode == 2

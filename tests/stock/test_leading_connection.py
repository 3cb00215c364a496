"""The leaders of a process sell over one connection, where connections are kept between requests."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest
from django.db import connection, connections

from inventory import DatabaseUnavailable, SoldOut, Stock, leading_connection, stock
from inventory.leading_connection import LeadingConnection
from inventory.strategies.combined import Combined
from inventory.strategies.locked import Locked
from locking import get_lock
from locking.core.waits import waiters
from tests.support.processes import until

pytestmark = pytest.mark.django_db(transaction=True)


def backend() -> int:
    """Return the process of PostgreSQL that this thread's statements go to."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def in_a_thread(work: Callable[[], object]) -> object:
    """Return what `work` returns in a thread of its own."""
    result = []

    def run() -> None:
        try:
            result.append(work())
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return result[0]


@pytest.fixture(params=[Combined, Locked])
def selling(request) -> Iterator[Stock]:
    """Stock whose leaders share a connection, which is closed at the end."""
    selling = Stock(strategy=request.param.name)
    selling.strategy = request.param(selling.settings, shared_connection=True)
    yield selling
    shared_by(selling)._shared.close()


def shared_by(selling: Stock) -> LeadingConnection:
    """Return what the leaders share."""
    strategy = selling.strategy
    assert isinstance(strategy, Combined | Locked)
    assert strategy._leading is not None
    return strategy._leading


@pytest.fixture
def kept(monkeypatch) -> None:
    """Connections are kept for ten minutes, and checked, as `make serve` has it."""
    for name, value in (("CONN_MAX_AGE", 600), ("CONN_HEALTH_CHECKS", True)):
        monkeypatch.setitem(connection.settings_dict, name, value)
        monkeypatch.setitem(connections.settings["default"], name, value)


def sell(selling: Stock, cause: str, sku: str = "mug") -> int:
    """Sell one, and return the backend over which it went."""
    return int(selling.sell({sku: 1}, cause=cause, write=lambda lines: backend()))


@pytest.mark.usefixtures("kept")
def test_all_threads_lead_over_one_connection_and_have_their_own_again(selling):
    """One backend of PostgreSQL serves every batch; around it each thread has its own."""
    stock.receive("mug", 3, cause="delivery")
    own, led = backend(), sell(selling, "1")
    assert in_a_thread(lambda: sell(selling, "2")) == led != own
    assert backend() == own


@pytest.mark.parametrize("strategy", [Combined, Locked])
@pytest.mark.parametrize("shared_connection", [True, False])
def test_without_kept_connections_each_leads_over_its_own(shared_connection, strategy):
    """What ends with its request can't be shared by several."""
    selling = Stock(strategy=strategy.name)
    selling.strategy = strategy(selling.settings, shared_connection=shared_connection)
    stock.receive("mug", 3, cause="delivery")
    assert sell(selling, "1") == backend()
    assert in_a_thread(lambda: sell(selling, "2")) != backend()


@pytest.mark.usefixtures("kept")
def test_it_is_left_idle(selling):
    """Sold or refused: no transaction stays open on it, and the thread's own connection is back."""
    stock.receive("mug", 1, cause="delivery")
    own, led = backend(), sell(selling, "1")
    with pytest.raises(SoldOut):
        sell(selling, "2")
    assert backend() == own
    with connection.cursor() as cursor:
        cursor.execute("SELECT state FROM pg_stat_activity WHERE pid = %s", [led])
        assert cursor.fetchone() == ("idle",)


def end(backend_pid: int) -> None:
    """Have the server end a connection, and return when its process is gone."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 30000)", [backend_pid])


@pytest.mark.usefixtures("kept")
def test_one_that_the_server_has_ended_is_replaced(selling):
    """As after a restart of PostgreSQL: the next sale finds out before it begins."""
    stock.receive("mug", 3, cause="delivery")
    led = sell(selling, "1")
    end(led)
    assert sell(selling, "2") != led
    assert stock.available("mug") == 1


@pytest.mark.usefixtures("kept")
def test_without_a_look_at_the_socket_a_sale_fails(selling, monkeypatch):
    """The mutant takes every kept connection for a living one; nothing is sold."""
    stock.receive("mug", 3, cause="delivery")
    end(sell(selling, "1"))
    monkeypatch.setattr(leading_connection, "is_silent", lambda connection: True)
    with pytest.raises(DatabaseUnavailable):
        sell(selling, "2")
    assert stock.available("mug") == 2


@pytest.mark.usefixtures("kept")
def test_a_childs_leaders_use_one_of_their_own(selling):
    """Two processes on one connection would read each other's answers."""
    stock.receive("mug", 3, cause="delivery")
    led = sell(selling, "1")
    parents, shared = shared_by(selling)._shared, shared_by(selling)
    shared._opened_by = os.getppid()  # what a child finds after a fork
    assert sell(selling, "2") != led
    assert parents.connection is not None, "the parent goes on with its own"
    parents.close()


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("selling", [Locked], indirect=True)
def test_who_waits_for_a_lock_has_no_turn_yet(selling):
    """Another item's holder sells over the shared connection meanwhile."""
    stock.receive("mug", 1, cause="mugs")
    stock.receive("pen", 2, cause="pens")
    led = sell(selling, "1", "pen")
    with get_lock("inventory:mug"):
        waiter = threading.Thread(target=in_a_thread, args=[lambda: sell(selling, "2")], daemon=True)
        waiter.start()
        until(lambda: waiters.total, "the buyer of a mug waits")
        assert led == sell(selling, "3", "pen")
    waiter.join()
    assert stock.available("mug") == 0

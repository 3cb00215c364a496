"""A dead connection is found before a lock is taken, at the price of a question per second."""

from __future__ import annotations

import pytest
from django.db import connection, connections

from inventory import connection_check
from inventory.connection_check import TRUSTED, check_connection
from inventory.domain import Line
from inventory.models import Product
from inventory.strategies import get_strategy
from orders.services import checkout
from tests.factories import ProductFactory
from tests.inventory.totals import totals_of

pytestmark = pytest.mark.django_db(transaction=True)


class Clock:
    """`time.monotonic` that a test turns."""

    def __init__(self) -> None:
        self.moment = 100.0

    def monotonic(self) -> float:
        """Return the moment."""
        return self.moment


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still."""
    clock = Clock()
    monkeypatch.setattr(connection_check, "time", clock)
    return clock


@pytest.fixture
def asked(monkeypatch):
    """The questions that were asked of the server, on a connection that is kept between requests."""
    questions: list[bool] = []
    really = connection.is_usable

    def is_usable() -> bool:
        questions.append(really())
        return questions[-1]

    connection.close()
    connection.ensure_connection()
    monkeypatch.setattr(connections["default"], "is_usable", is_usable)
    monkeypatch.setattr(connections["default"], "health_check_enabled", True)
    request_begins()
    yield questions
    connection.close()


def server_ends_it() -> None:
    """Have the server end this connection, unseen by its client, and return when its process is gone."""
    other = connection.copy()
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 30000)", [connection.connection.info.backend_pid])
    other.close()


def request_begins() -> None:
    """Do what Django does at the end of the request before."""
    setattr(connections["default"], "health_check_done", False)  # noqa: B010  not in the stubs


def test_a_busy_thread_asks_once_per_second(clock, asked):
    """Within the second neither this check nor Django's own asks; after it the server is asked again."""
    for moment, questions in ((0.0, 1), (TRUSTED * 0.9, 1), (TRUSTED, 2)):
        clock.moment = 100.0 + moment
        request_begins()
        check_connection()
        connection.close_if_health_check_failed()  # as the beginning of a transaction does
        assert len(asked) == questions


def test_a_connection_that_the_server_has_ended_is_replaced_at_once(clock, asked):
    """Ended within the second for which it was trusted, it is closed before a lock is taken."""
    check_connection()
    server_ends_it()
    request_begins()
    check_connection()
    assert asked == [True, False]
    assert connection.connection is None


def test_without_a_look_at_the_socket_a_dead_connection_is_taken_for_a_living_one(clock, asked, monkeypatch):
    """The mutant of the test above: trusting the time alone keeps what the server has ended."""
    monkeypatch.setattr(connection_check, "_has_news", lambda raw: False)
    check_connection()
    server_ends_it()
    request_begins()
    check_connection()
    assert asked == [True]
    assert connection.connection is not None


def test_a_new_connection_is_asked_whatever_its_predecessor_said(clock, asked):
    """Trust belongs to the connection, not to the thread."""
    check_connection()
    connection.close()
    connection.ensure_connection()
    request_begins()
    check_connection()
    assert len(asked) == 2


@pytest.mark.parametrize("strategy", ["combined", "unit_rows", "row_lock"])
def test_a_sale_is_made_although_its_connection_died_while_the_thread_slept(asked, strategy):
    """Also where the sale's first statement is one of its own cursors, which ask as Django's do."""
    sku = ProductFactory.create(on_hand=2).sku
    get_strategy(strategy).prepare(Product.objects.filter(sku=sku))
    server_ends_it()
    request_begins()
    checkout([Line(sku, 1)], strategy)
    assert totals_of(sku).left == 1

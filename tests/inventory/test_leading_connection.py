"""The leaders of a process sell over one connection, where connections are kept between requests."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
from django.db import OperationalError, connection, connections

from inventory import batch_sale, leading_connection, rows
from inventory.domain import Line, SoldOut
from inventory.leading_connection import leading_connection as leading
from inventory.models import Product
from orders.services import checkout
from tests.factories import ProductFactory
from tests.inventory.interleaving import buyers

pytestmark = pytest.mark.django_db(transaction=True)


def backend() -> int:
    """The process of PostgreSQL that this thread's statements go to."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def leading_backend() -> int:
    """The same for who leads."""
    with leading():
        return backend()


def in_a_thread(work) -> object:
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


@pytest.fixture
def kept(monkeypatch) -> Iterator[None]:
    """Connections are kept for ten minutes, and checked, as `make serve` has it."""
    for name, value in (("CONN_MAX_AGE", 600), ("CONN_HEALTH_CHECKS", True)):
        monkeypatch.setitem(connection.settings_dict, name, value)
        monkeypatch.setitem(connections.settings["default"], name, value)
    monkeypatch.setattr(leading_connection, "_shared", leading_connection._Shared())
    yield
    if shared := leading_connection._shared.connection:
        shared.close()


@pytest.mark.usefixtures("kept")
def test_all_threads_lead_over_one_connection_and_have_their_own_again():
    """One backend of PostgreSQL serves every batch; around it each thread has its own."""
    own, led = backend(), leading_backend()
    assert in_a_thread(leading_backend) == led != own
    assert backend() == own


def test_without_kept_connections_each_leads_over_its_own():
    """What ends with its request can't be shared by several."""
    assert leading_backend() == backend()
    assert in_a_thread(leading_backend) != backend()


@pytest.mark.usefixtures("kept")
def test_sales_go_over_it_and_leave_no_transaction_open(monkeypatch):
    """Sold at once, refused, sold under row locks: each over the same backend, which is idle afterwards."""
    sku = ProductFactory.create(on_hand=2).sku
    seen = []
    look = rows.read_those_there_are

    def noted(skus):
        seen.append(backend())
        return look(skus)

    monkeypatch.setattr(batch_sale, "read_those_there_are", noted)
    checkout([Line(sku, 1)], "combined")
    with pytest.raises(SoldOut):
        checkout([Line(sku, 2)], "combined")
    limited = ProductFactory.create(on_hand=1).sku
    Product.objects.filter(sku=limited).update(customer_limit=1)
    checkout([Line(limited, 1)], "combined", customer="ann")
    assert seen == [leading_backend()] * 3
    with connection.cursor() as cursor:
        cursor.execute("SELECT state FROM pg_stat_activity WHERE pid = %s", [seen[0]])
        assert cursor.fetchone() == ("idle",)
    assert list(Product.objects.order_by("pk").values_list("on_hand", flat=True)) == [1, 0]


@pytest.mark.usefixtures("kept")
def test_one_that_the_server_has_ended_is_replaced():
    """As after a restart of PostgreSQL: the next sale finds out before it begins."""
    sku = ProductFactory.create(on_hand=2).sku
    checkout([Line(sku, 1)], "combined")
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 30000)", [leading_backend()])
    checkout([Line(sku, 1)], "combined")
    assert Product.objects.get().on_hand == 0


@pytest.mark.usefixtures("kept")
def test_one_in_which_a_statement_failed_is_asked_before_the_next_batch():
    """A connection that died in the hands of one leader isn't the next one's."""
    with pytest.raises(OperationalError), leading(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    assert leading_backend() > 0


@pytest.mark.usefixtures("kept")
def test_who_comes_while_another_leads_uses_its_own():
    """Two at a time never write into one transaction."""
    with leading():
        mine = backend()
        assert in_a_thread(leading_backend) != mine
    assert in_a_thread(leading_backend) == mine


@pytest.mark.usefixtures("kept")
def test_a_connection_is_given_back_by_a_leader_that_is_stopped():
    """Whatever ends the block, the thread has its own connection, and the next one leads."""
    own = backend()
    with pytest.raises(KeyboardInterrupt), leading():
        raise KeyboardInterrupt
    assert backend() == own
    assert in_a_thread(leading_backend) == leading_backend()


@pytest.mark.usefixtures("kept")
def test_a_forked_child_makes_one_of_its_own_and_the_parents_lives():
    """The child of a fork would write into its parent's answers."""
    led = leading_backend()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, b"none" if leading_connection._shared.connection is None else b"kept")
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 10) == b"none"
    os.close(read)
    os.close(write)
    assert leading_backend() == led


@pytest.mark.usefixtures("kept")
def test_buyers_of_a_batch_are_sold_to_over_it():
    """A leads, B and C wait and are served by one of them: three orders, three units."""
    sku = ProductFactory.create(on_hand=3).sku
    with buyers() as start:
        a = start("A", lambda: checkout([Line(sku, 1)], "combined"), "decided").reaches("decided")
        others = [start(name, lambda: checkout([Line(sku, 1)], "combined")) for name in "BC"]
        assert [other.ends_or_waits() for other in others] == ["waits", "waits"]
        assert [buyer.ends().error for buyer in (a, *others)] == [None] * 3
    assert Product.objects.get().on_hand == 0

"""`combined`: who leads, who waits, and that each gets its own answer."""

from __future__ import annotations

import os
import threading
from decimal import Decimal
from functools import partial

import pytest
from django.conf import settings
from django.db import IntegrityError, OperationalError, connection

from inventory import batch_sale as module
from inventory import group_commit as queue_module
from inventory.domain import Busy, LimitReached, Line, SoldOut, UnknownProduct
from inventory.group_commit import GroupCommit
from inventory.models import CustomerPurchase, Product
from inventory.progress import OutcomeUnknown, SaleProgress
from inventory.rows import subtract_many
from inventory.strategies import Sale, Strategy
from inventory.strategies.combined import Combined
from orders.models import Order
from orders.order_writer import ClientKey, RepeatedKey
from orders.services import checkout
from tests.factories import LabProductFactory, ProductFactory
from tests.inventory.interleaving import Killed, buyers, eventually
from tests.inventory.totals import totals_of

pytestmark = pytest.mark.django_db(transaction=True)


def buying(*lines: Line):
    """Return what a buyer does."""
    return partial(checkout, lines, "combined")


def waiting() -> int:
    """Return how many callers stand in the queue."""
    return len(Combined.group_commit._queue)


@pytest.fixture
def batches(monkeypatch):
    """The sizes of the batches that are sold, as they come."""
    sizes = []
    sell = module._sell_at_once

    def counted(batch):
        sizes.append(len(batch))
        sell(batch)

    monkeypatch.setattr(module, "_sell_at_once", counted)
    return sizes


@pytest.fixture(params=["at once", "carefully"])
def way(request, monkeypatch):
    """Both ways to sell to a batch, and where a leader can be stopped before its commit."""
    if request.param == "at once":
        return "decided"

    def refuse(batch):
        raise IntegrityError("as if the stock had changed")

    monkeypatch.setattr(module, "_sell_at_once", refuse)
    return "recorded"


def line_up(start, *carts, at="decided"):
    """Let A lead and stop at `at`, and a buyer for each cart wait behind it, in order."""
    first = ProductFactory.create().sku
    a = start("A", buying(Line(first, 1)), at).reaches(at)
    others = []
    for number, cart in enumerate(carts):
        others.append(start(f"B{number}", buying(*cart)))
        eventually(lambda: waiting() == len(others), "another one waits")
    return a, others


def test_who_waits_is_sold_to_in_one_commit(batches):
    """Five come while A is at work: one of them sells for all five, and ledger and stock agree."""
    sku = ProductFactory.create(on_hand=10).sku
    with buyers() as start:
        a, others = line_up(start, *([Line(sku, 1)],) * 5)
        assert all(buyer.ends().error is None for buyer in (a, *others))
    assert batches == [1, 5]
    assert (totals_of(sku).sold, totals_of(sku).left, totals_of(sku).orders) == (5, 5, 5)
    assert totals_of(sku).balanced


def test_each_has_its_own_verdict(way):
    """In one batch: served, sold out with what is left, unknown, a cart of two lines, and the last unit."""
    pen, mug = ProductFactory.create(on_hand=3).sku, ProductFactory.create(on_hand=2).sku
    carts = [
        [Line(pen, 2)],
        [Line(pen, 2), Line(mug, 1)],
        [Line("missing", 1), Line(pen, 1)],
        [Line(pen, 1), Line(mug, 1)],
        [Line(mug, 1)],
    ]
    with buyers() as start:
        a, others = line_up(start, *carts, at=way)
        a.ends()
        errors = [buyer.ends().error for buyer in others]
    assert [type(error) for error in errors] == [type(None), SoldOut, UnknownProduct, type(None), type(None)]
    assert [(s.sku, s.requested, s.available) for s in errors[1].shortages] == [(pen, 2, 1)]
    assert errors[2].skus == ("missing",)
    assert [totals_of(sku).left for sku in (pen, mug)] == [0, 0]
    assert totals_of(pen).balanced
    assert totals_of(mug).balanced


@pytest.mark.parametrize("way", ["carefully"], indirect=True)
def test_a_member_whose_rows_are_refused_does_not_fail_its_neighbours(way, monkeypatch):
    """When the database refuses the batch for one member's sake, the others are sold to all the same."""
    sku, poisoned = ProductFactory.create().sku, ProductFactory.create().sku
    write = subtract_many

    def refuse_the_poisoned(taken):
        taken = list(taken)
        if len(taken) > 1 or totals_of(poisoned).left - taken[0][1] == 7:
            raise IntegrityError("some constraint")
        write(taken)

    with buyers() as start:
        a, others = line_up(start, [Line(sku, 1)], [Line(poisoned, 3)], [Line(sku, 1)], at=way)
        monkeypatch.setattr(module, "subtract_many", refuse_the_poisoned)
        a.ends()
        errors = [type(buyer.ends().error) for buyer in others]
    assert errors == [type(None), IntegrityError, type(None)]
    assert (totals_of(sku).sold, totals_of(poisoned).sold) == (2, 0)


def test_a_leader_that_is_stopped_before_its_commit_makes_the_others_busy(way):
    """B leads for C and is ended before the commit: nothing is sold, C is told to try again, D goes on."""
    sku = ProductFactory.create().sku
    with buyers() as start:
        a, (b, c) = line_up(start, [Line(sku, 1)], [Line(sku, 1)], at=way)
        b.stops.append(way)
        a.ends()
        b.reaches(way)
        d = start("D", buying(Line(sku, 1)))
        eventually(lambda: waiting() == 1, "D waits")
        assert isinstance(b.dies().error, Killed)
        assert isinstance(c.ends().error, Busy)
        assert d.ends().error is None
    assert (totals_of(sku).sold, totals_of(sku).orders) == (1, 1)


def test_a_leader_that_is_stopped_after_its_commit_has_sold_for_the_others(way):
    """What is committed is committed: C gets its order, whatever becomes of B."""
    sku = ProductFactory.create().sku
    with buyers() as start:
        a, (b, c) = line_up(start, [Line(sku, 1)], [Line(sku, 1)], at=way)
        b.stops.append("committed")
        a.ends()
        assert isinstance(b.reaches("committed").dies().error, Killed)
        assert Order.objects.filter(pk=c.ends().result.pk).exists()
    assert totals_of(sku).sold == 2


def stopped_once(step):
    """Return a step at which the first one who comes there is stopped for good."""
    stops = iter([Killed("here")])

    def stop(*args):
        for killed in stops:
            raise killed
        return step(*args)

    return stop


def test_a_leader_that_is_stopped_right_behind_its_commit_has_sold_for_the_others(monkeypatch):
    """The server has committed and said so, B is ended before it could tell C: C gets its order."""
    sku = ProductFactory.create().sku
    with buyers() as start:
        a, (b, c) = line_up(start, [Line(sku, 1)], [Line(sku, 1)])
        b.stops.append("decided")
        a.ends()
        b.reaches("decided")
        monkeypatch.setattr(module, "_settle", stopped_once(module._settle))
        assert isinstance(b.ends().error, Killed)
        assert Order.objects.filter(pk=c.ends().result.pk).exists()
    assert totals_of(sku).sold == 2


def test_a_leader_that_is_stopped_in_its_commit_leaves_the_outcome_unknown(monkeypatch):
    """The server has committed, B is ended before it heard so: C isn't told that nothing was sold."""
    sku = ProductFactory.create().sku
    with buyers() as start:
        a, (b, c) = line_up(start, [Line(sku, 1)], [Line(sku, 1)])
        b.stops.append("decided")
        a.ends()
        b.reaches("decided")
        monkeypatch.setattr(SaleProgress, "commit", stopped_once(SaleProgress.commit))
        assert isinstance(b.ends().error, Killed)
        assert isinstance(c.ends().error, OutcomeUnknown)
    assert totals_of(sku).sold == 2


def all_others_are_busy(patch):
    """Followers are answered without a look at how far their sales were."""

    def answer(batch, error):
        for ticket in batch:
            ticket.error = error if ticket is batch[0] else Busy("the leader was stopped")

    patch.setattr(queue_module, "_answer", answer)


def no_commit_is_noted(patch):
    """The server's word that it has committed is not kept."""
    patch.setattr(SaleProgress, "commit", lambda progress: None)


@pytest.mark.parametrize(
    ("mutant", "shows"),
    [
        (no_commit_is_noted, test_a_leader_that_is_stopped_right_behind_its_commit_has_sold_for_the_others),
        (all_others_are_busy, test_a_leader_that_is_stopped_in_its_commit_leaves_the_outcome_unknown),
    ],
)
def test_an_answer_that_ignores_the_commit_is_found_out(mutant, shows, monkeypatch):
    """Mutants of the two tests above: C isn't told of its order, or is told that nothing was sold."""
    mutant(monkeypatch)
    with pytest.raises((AssertionError, AttributeError)):
        shows(monkeypatch)
    assert Order.objects.count() == 3


CHANGES = {
    "sold to others": {"on_hand": 1},
    "promised to a basket": {"reserved": 4},
    "another price": {"price": Decimal(7)},
    "a limit": {"customer_limit": 1},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changed_after_the_look_counts(change):
    """A has looked and decided; before its statement the product changes: nothing is sold as it was."""
    sku = LabProductFactory.create(on_hand=5, price=Decimal(5), guarded=False).sku
    with buyers() as start:
        a = start("A", buying(Line(sku, 2)), "decided").reaches("decided")
        Product.objects.filter(sku=sku).update(**change)
        outcome = a.ends()
    if "price" in change:
        assert outcome.result is not None
        assert vars(outcome.result)["total"] == 14
    else:
        assert isinstance(outcome.error, LimitReached if "customer_limit" in change else SoldOut)
        assert not Order.objects.exists()
    assert Product.objects.get(sku=sku).on_hand == change.get("on_hand", 3 if outcome.result else 5)


def test_refusals_cost_no_transaction(django_assert_num_queries):
    """Who comes too late costs a look, and no second one for reservations where there are none."""
    sku = ProductFactory.create(on_hand=0).sku
    with django_assert_num_queries(1), pytest.raises(SoldOut):
        checkout([Line(sku, 1)], "combined")


def test_units_of_customers_are_counted_together(way):
    """Two orders of one customer and one of another in a batch: each counter has its sum."""
    sku = ProductFactory.create().sku
    with buyers() as start:
        a, _ = line_up(start, at=way)
        for name in ("ann", "bob", "ann"):
            start(name, partial(checkout, [Line(sku, 2)], "combined", customer=name))
            eventually(lambda: waiting() > 0, "it waits")
        eventually(lambda: waiting() == 3, "all wait")
        a.ends()
    assert dict(CustomerPurchase.objects.values_list("customer", "units")) == {"ann": 4, "bob": 2}


def test_a_key_that_was_used_sells_to_the_neighbours_only(batches):
    """B repeats a key that has its answer: B hears of that, C behind it is served."""
    sku = ProductFactory.create().sku
    key = ClientKey("", "k", "print")
    checkout([Line(sku, 1)], "combined", key=key)
    with buyers() as start:
        a, _ = line_up(start)
        b = start("B", partial(checkout, [Line(sku, 1)], "combined", key=key))
        eventually(lambda: waiting() == 1, "B waits")
        c = start("C", buying(Line(sku, 1)))
        eventually(lambda: waiting() == 2, "C waits")
        a.ends()
        assert isinstance(b.ends().error, RepeatedKey)
        assert c.ends().error is None
    assert batches == [1, 1, 2]
    assert totals_of(sku).sold == 2


def test_a_row_that_stays_locked_is_busy(monkeypatch):
    """Somebody keeps the product's row: the statement gives up after the wait, and nothing is sold."""
    sku = ProductFactory.create().sku
    monkeypatch.setattr(Strategy, "wait", 0.05)
    with buyers() as start:
        a = start("A", partial(checkout, [Line(sku, 1)], "row_lock"), "locked").reaches("locked")
        with pytest.raises(Busy):
            checkout([Line(sku, 1)], "combined")
        with connection.cursor() as cursor:
            cursor.execute("SHOW lock_timeout")
            assert cursor.fetchone() == ("0",)
        a.ends()
    assert totals_of(sku).sold == 1


def test_a_lost_connection_is_everybodys_answer(monkeypatch):
    """When the outcome of the commit is unknown, no caller is told that it failed or that it went well."""
    sku = ProductFactory.create().sku

    def lose(batch):
        raise OperationalError("the connection is closed")

    with buyers() as start:
        a, others = line_up(start, [Line(sku, 1)], [Line(sku, 1)])
        monkeypatch.setattr(module, "_sell_at_once", lose)
        a.ends()
        assert all(isinstance(buyer.ends().error, OperationalError) for buyer in others)


def test_who_waits_too_long_is_busy_and_not_sold_to(monkeypatch):
    """Nobody began with B's sale in time: it leaves the queue, and A's successor doesn't find it."""
    sku = ProductFactory.create().sku
    with buyers() as start:
        a, _ = line_up(start)
        monkeypatch.setattr(Combined, "wait", 0.05)
        with pytest.raises(Busy, match="nobody began"):
            checkout([Line(sku, 1)], "combined")
        assert waiting() == 0
        a.ends()
    assert totals_of(sku).sold == 0


def test_who_is_stopped_while_waiting_is_not_sold_to():
    """B gives up in the queue: nothing is bought in its name, and the one behind it is served."""
    sku = ProductFactory.create().sku
    with buyers() as start:
        a, _ = line_up(start)
        b = start("B", buying(Line(sku, 1)), "waiting").reaches("waiting")
        c = start("C", buying(Line(sku, 1)))
        eventually(lambda: waiting() == 2, "C waits too")
        assert isinstance(b.dies().error, Killed)
        a.ends()
        assert c.ends().error is None
    assert totals_of(sku).orders == 1


def test_a_batch_has_a_bound_and_the_lead_is_handed_on():
    """With at most two a batch, five callers are worked for in three batches, by three different leaders."""
    leaders, gate = [], threading.Event()

    def work(batch):
        leaders.append((threading.current_thread().name, len(batch)))
        gate.wait(30)

    def queued(others):
        return bool(leaders) and len(group_commit._queue) == others

    group_commit = GroupCommit(work, most=2)
    threads = []
    for number in range(5):
        threads.append(
            threading.Thread(target=group_commit.submit, args=(Sale((), print), 10), name=f"T{number}")
        )
        threads[-1].start()
        eventually(partial(queued, number), "it leads or waits")
    gate.set()
    for thread in threads:
        thread.join(30)
    assert leaders == [("T0", 1), ("T1", 2), ("T3", 2)]
    assert not group_commit._led


def test_a_fork_starts_with_an_empty_queue():
    """A child forked while its parent leads doesn't wait for a leader that it doesn't have."""
    inside, go = threading.Event(), threading.Event()

    def work(batch):
        inside.set()
        go.wait(30)

    group_commit = GroupCommit(work)
    thread = threading.Thread(target=group_commit.submit, args=(Sale((), print), 10))
    thread.start()
    inside.wait(30)
    child = os.fork()
    if not child:
        os._exit(0 if not group_commit._led and not group_commit._mutex.locked() else 1)
    _, status = os.waitpid(child, 0)
    go.set()
    thread.join(30)
    assert os.waitstatus_to_exitcode(status) == 0


def test_the_server_remembers_the_statement():
    """After a few sales on one connection PostgreSQL runs look and sale from their plans."""
    sku = ProductFactory.create().sku
    for _ in range(settings.DATABASES["default"]["OPTIONS"]["prepare_threshold"] + 1):
        checkout([Line(sku, 1)], "combined")
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement FROM pg_prepared_statements")
        remembered = [row[0] for row in cursor.fetchall()]
    assert any("INSERT INTO orders_order " in statement for statement in remembered)
    assert any(statement.startswith("SELECT id, sku") for statement in remembered)

"""Each sound strategy sells exactly its stock in the interleavings that break others, wherever A stops."""

from __future__ import annotations

import inspect

import pytest
from django.db import connection, transaction
from django.db.models import F

from locking import (
    BackendUnavailable,
    LockLost,
    LockTransactionError,
    StaleFencingToken,
    distributed_lock,
    get_lock,
)
from orders.lab import redis_store
from orders.lab.cart import Busy, SoldOut, UnknownProduct
from orders.lab.models import Order, OrderItem, Product
from orders.lab.strategies import STRATEGIES, get_strategy
from orders.lab.strategies.base import lock_names
from orders.lab.strategies.fenced_lock import FencedLock
from orders.lab.strategies.local_lock import _locks
from orders.lab.strategies.redis_lock import RedisLock
from orders.lab.strategies.redis_spin_lock import RedisSpinLock
from orders.lab.strategies.row_lock import RowLock
from orders.lab.strategies.segmented import Segmented
from orders.lab.strategies.version_cas import VersionCas
from tests.lab.interleaving import Killed, buyers, eventually
from tests.lab.processes import process_buyers
from tests.lab.products import buying, make, sell
from tests.lab.steps import STEPS
from tests.lab.totals import totals_of

pytestmark = pytest.mark.django_db(transaction=True)

SOUND = [name for name, strategy in STRATEGIES.items() if strategy.sound]
LOCKS = [
    "row_lock",
    "ordered_locks",
    "lock_table",
    "unique_row",
    "advisory_lock",
    "local_lock",
    "redis_lock",
    "zookeeper_lock",
    "etcd_lock",
    "redlock",
    "database_lock",
    "redis_spin_lock",
    "fenced_lock",
]
IN_REDIS = ["redis_script", "redis_gate", "segmented"]
SERVERS = ["redis_lock", "zookeeper_lock", "etcd_lock", "redlock", "database_lock"]
LEFT_BEHIND = {"setnx_expire_del": "lock", "setnx_getset": "stamp", "redis_spin_lock": "spin"}


def at(strategy: str, step: str) -> str:
    """Return `step`, or the last before the commit of a strategy that does everything in one statement."""
    return step if step in STEPS[strategy].split() else "decided"


STOPS = [(name, stop) for name, steps in STEPS.items() for stop in steps.split()]


@pytest.mark.parametrize("strategy", SOUND)
def test_the_checkpoints_come_in_their_order(strategy):
    """A buyer alone passes exactly the checkpoints of its strategy; a lock is let go after the commit."""
    sku = make().sku
    with buyers() as start:
        a = start("A", buying(strategy, {sku: 1}))
        a.ends()
    assert [event.name for event in a.journal] == STEPS[strategy].split()


@pytest.mark.parametrize(("strategy", "stop"), STOPS)
def test_two_buyers_of_the_last_unit(strategy, stop):
    """A stops anywhere; B runs until it ends or is seen waiting; A goes on: one is served, one is refused."""
    sku = make().sku
    with buyers() as start:
        a = start("A", buying(strategy, {sku: 1}), stop).reaches(stop)
        b = start("B", buying(strategy, {sku: 1}))
        b.ends_or_waits()
        outcomes = [a.ends(), b.ends()]
    assert sorted(type(outcome.error or outcome.result).__name__ for outcome in outcomes) == [
        "SoldOut",
        "UUID",
    ]
    kept = totals_of(sku)
    assert (kept.sold, kept.left, kept.orders) == (1, 0, 1)
    assert kept.balanced
    assert "second_line" not in {event.name for event in a.journal}, (
        "the strategy itself held, not the database"
    )


@pytest.mark.parametrize("strategy", LOCKS)
def test_a_lock_keeps_the_second_buyer_out_until_the_commit(strategy):
    """While A is between its read and its commit B waits, and then B reads what A has committed."""
    sku = make(2).sku
    with buyers() as start:
        a = start("A", buying(strategy, {sku: 1}), "recorded").reaches("recorded")
        b = start("B", buying(strategy, {sku: 1}))
        assert b.ends_or_waits() == "waits"
        a.ends()
        assert b.ends().error is None
    (read,) = [event.facts["on_hand"] for event in a.journal if (event.buyer, event.name) == ("B", "read")]
    assert read == {sku: 1}, "B read what A committed, not what was there before"
    assert totals_of(sku).sold == 2


@pytest.mark.parametrize("strategy", SOUND)
def test_a_buyer_that_fails_gives_its_units_to_the_next(strategy):
    """A dies before its commit while B may be waiting; B gets the unit, and nothing of A is left."""
    sku = make().sku
    with buyers() as start:
        stop = at(strategy, "recorded")
        a = start("A", buying(strategy, {sku: 1}), stop).reaches(stop)
        if strategy in IN_REDIS:  # without waiting: while A has the unit others are refused
            assert isinstance(start("C", buying(strategy, {sku: 1})).ends().error, SoldOut)
            assert isinstance(a.dies().error, Killed)
        b = start("B", buying(strategy, {sku: 1}))
        b.ends_or_waits()
        assert isinstance(a.dies().error, Killed)
        assert b.ends().error is None
    assert totals_of(sku).balanced
    assert totals_of(sku).orders == 1


@pytest.mark.parametrize("strategy", SOUND)
def test_a_cart_is_sold_whole_or_not_at_all(strategy):
    """One short line refuses the cart, is the only one named, and the other's stock is left alone."""
    full, short = make(5, guarded=True).sku, make(1, guarded=True).sku
    with pytest.raises(SoldOut) as refused:
        sell(strategy, {full: 2, short: 2})
    assert [(s.sku, s.requested, s.available) for s in refused.value.shortages] == [(short, 2, 1)]
    assert (totals_of(full).left, totals_of(short).left) == (5, 1)
    order = sell(strategy, {full: 5, short: 1})
    assert OrderItem.objects.filter(order=order).count() == 2
    assert (totals_of(full).left, totals_of(short).left) == (0, 0)
    assert totals_of(full).balanced
    assert totals_of(short).balanced


@pytest.mark.parametrize("strategy", SOUND)
def test_crossed_carts_do_not_deadlock(strategy):
    """A wants pen and mug, B mug and pen, A stops with both written: then both are served."""
    pen, mug = make(2, guarded=True).sku, make(2, guarded=True).sku
    with buyers() as start:
        stop = at(strategy, "written")
        a = start("A", buying(strategy, {pen: 1, mug: 1}), stop).reaches(stop)
        b = start("B", buying(strategy, {mug: 1, pen: 1}))
        b.ends_or_waits()
        assert a.ends().error is None
        assert b.ends().error is None
    assert (totals_of(pen).left, totals_of(mug).left) == (0, 0)


@pytest.mark.parametrize(
    "strategy", ["row_lock", "ordered_locks", "conditional_update", "version_cas", "combined", *IN_REDIS]
)
def test_rows_are_locked_in_primary_key_order(strategy):
    """A buyer that waits for the row with the lowest key holds none of the others."""
    first, second = make(10, "zebra", guarded=True), make(10, "ant", guarded=True)
    with buyers() as start, transaction.atomic():
        Product.objects.select_for_update().get(pk=first.pk)
        b = start("B", buying(strategy, {"ant": 1, "zebra": 1}))
        assert b.ends_or_waits() == "waits"
        assert Product.objects.select_for_update(nowait=True).get(pk=second.pk)
        transaction.set_rollback(True)
    assert b.outcome.error is None
    assert (totals_of("zebra").sold, totals_of("ant").sold) == (1, 1)


def test_a_locked_row_does_not_hold_up_what_only_refers_to_it():
    """FOR NO KEY UPDATE: another transaction may insert an item of the locked product (FOR KEY SHARE)."""
    product = make(10, guarded=True)
    share = "SELECT sku FROM lab_product WHERE id = %s FOR KEY SHARE NOWAIT"
    with buyers() as start:
        start("A", buying("row_lock", {product.sku: 1}), "read").reaches("read")
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(share, [product.pk])
            assert cursor.fetchone() == (product.sku,)


def test_spin_locks_are_taken_in_one_order():
    """A buyer that waits for the first SKU's lock holds none of the others, whatever its basket's order."""
    first, second = make(10, "ant", guarded=True).sku, make(10, "zebra", guarded=True).sku
    redis = redis_store.client()
    redis.set(f"lab:spin:{first}", "another")
    with buyers() as start:
        b = start("B", buying("redis_spin_lock", {second: 1, first: 1}))
        assert b.ends_or_waits() == "waits"
        assert not redis.exists(f"lab:spin:{second}")
        redis.delete(f"lab:spin:{first}")
        assert b.ends().error is None


def test_local_locks_are_taken_in_one_order():
    """The same for the locks of one process."""
    first, second = make(10, "ant", guarded=True).sku, make(10, "zebra", guarded=True).sku
    sell("local_lock", {first: 1, second: 1})
    with buyers() as start:
        with _locks[first]:
            b = start("B", buying("local_lock", {second: 1, first: 1}))
            assert b.ends_or_waits() == "waits"
            assert not _locks[second].locked()
        assert b.ends().error is None


@pytest.mark.parametrize("strategy", SOUND)
def test_an_unknown_product_is_named(strategy):
    """Every unknown SKU of the cart is named, and nothing of the known one is taken."""
    sku = make(3, guarded=True).sku
    with pytest.raises(UnknownProduct) as unknown:
        sell(strategy, {"missing": 1, sku: 1, "phantom": 1})
    assert unknown.value.skus == ("missing", "phantom")
    assert totals_of(sku).left == 3
    sell(strategy, {sku: 3})


@pytest.mark.parametrize("strategy", SOUND)
def test_inside_an_open_transaction_it_is_refused(strategy):
    """A sale inside the caller's transaction would commit after its lock is gone, so it isn't begun."""
    sku = make(3, guarded=True).sku
    with transaction.atomic(), pytest.raises((RuntimeError, LockTransactionError)):
        sell(strategy, {sku: 1})
    assert totals_of(sku).left == 3
    assert sell(strategy, {sku: 3}), "what was refused has held nothing back"


@pytest.mark.parametrize("strategy", SOUND)
def test_the_database_has_the_last_word(strategy):
    """Stock that went away behind the strategy's back is not sold, whatever Redis believes."""
    sku = make(3, guarded=True).sku
    get_strategy(strategy).prepare(Product.objects.filter(sku=sku))
    sell("conditional_update", {sku: 2})
    with pytest.raises(SoldOut) as refused:
        sell(strategy, {sku: 2})
    assert refused.value.shortages[0].available == 1
    sell(strategy, {sku: 1})
    assert totals_of(sku).balanced


# Waiting has an end, and its end is Busy.


def test_row_lock_is_busy_when_the_row_stays_locked(monkeypatch):
    """A row that stays locked for the whole wait means try again, never sold out."""
    monkeypatch.setattr(RowLock, "wait", 0.05)
    sku = make(3, guarded=True).sku
    with buyers() as start:
        a = start("A", buying("row_lock", {sku: 1}), "read").reaches("read")
        with pytest.raises(Busy):
            sell("row_lock", {sku: 1})
        a.ends()
    assert totals_of(sku).sold == 1


@pytest.mark.parametrize("strategy", ["conditional_update", "version_cas", *IN_REDIS])
def test_an_update_is_busy_when_the_row_stays_locked(strategy, monkeypatch):
    """An UPDATE waits for a row no longer than the strategy's own wait either."""
    monkeypatch.setattr(STRATEGIES[strategy], "wait", 0.05)
    sku = make(3, guarded=True).sku
    with buyers() as start:
        a = start("A", buying("row_lock", {sku: 1}), "read").reaches("read")
        with pytest.raises(Busy):
            sell(strategy, {sku: 1})
        a.ends()
    assert sell(strategy, {sku: 2}), "what was taken before the wait was given back"


def test_redis_lock_is_busy_with_the_holders_remaining_time(monkeypatch):
    """When the lock stays taken, Busy says when the holder's lease ends."""
    monkeypatch.setattr(RedisLock, "wait", 0.05)
    sku = make(10, guarded=True).sku
    with buyers() as start:
        a = start("A", lambda: get_lock(f"lab:sku:{sku}", ttl=20).acquire())
        a.ends()
        with pytest.raises(Busy) as busy:
            sell("redis_lock", {sku: 1})
    assert 10 < busy.value.retry_after <= 20
    assert totals_of(sku).sold == 0


def test_redis_lock_is_busy_when_its_lease_was_lost(monkeypatch):
    """A lost lease rolls the sale back before the commit, so the buyer may try again."""

    def lose(self: RedisLock, *args: object) -> None:
        raise LockLost("the lease of 'sku:mug' ended")

    monkeypatch.setattr(RedisLock, "record", lose)
    with pytest.raises(Busy, match="lease"):
        sell("redis_lock", {make(3, guarded=True).sku: 1})


def test_the_spin_lock_is_busy_when_its_time_is_out(monkeypatch):
    """The acquire time-out ends the polling, and the other's lock stays."""
    monkeypatch.setattr(RedisSpinLock, "acquire_timeout", 0.05)
    sku = make(10, guarded=True).sku
    redis_store.client().set(f"lab:spin:{sku}", "another")
    with pytest.raises(Busy):
        sell("redis_spin_lock", {sku: 1})
    assert redis_store.client().get(f"lab:spin:{sku}") == "another"


def test_local_lock_is_busy_when_its_time_is_out(monkeypatch):
    """A thread that never lets go makes the others Busy."""
    monkeypatch.setattr(STRATEGIES["local_lock"], "wait", 0.05)
    sku = make(10, guarded=True).sku
    sell("local_lock", {sku: 1})
    with _locks[sku], pytest.raises(Busy):
        sell("local_lock", {sku: 1})
    assert sell("local_lock", {sku: 1})


def test_version_cas_is_busy_when_its_tries_run_out(monkeypatch):
    """Overtaken at every try, the buyer hears *try again*, not that the stock is gone."""
    monkeypatch.setattr(VersionCas, "tries", 3)
    sku = make(10, guarded=True).sku
    with buyers() as start:
        a = start("A", buying("version_cas", {sku: 1}), *["decided"] * 3)
        for _ in range(3):
            a.reaches("decided")
            sell("conditional_update", {sku: 1})
            a.goes_on()
        error = a.ends().error
    assert isinstance(error, Busy)
    assert "3 times" in str(error)
    assert totals_of(sku).left == 7


def test_version_cas_tries_again_when_it_was_overtaken():
    """One overtaking costs one more try, in a new transaction, and still one order."""
    sku = make(10, guarded=True).sku
    with buyers() as start:
        a = start("A", buying("version_cas", {sku: 1}), "decided").reaches("decided")
        sell("conditional_update", {sku: 1})
        assert a.ends().error is None
    assert [event.name for event in a.journal].count("overtaken") == 1
    assert (totals_of(sku).sold, totals_of(sku).orders) == (2, 2)


@pytest.mark.parametrize("strategy", ["row_lock", "ordered_locks", "local_lock", "conditional_update"])
def test_version_cas_notices_a_sale_of_another_strategy(strategy):
    """Products of one shop may be sold in several ways: each raises the version of the row that it writes."""
    sku = make(2, guarded=True).sku
    with buyers() as start:
        a = start("A", buying("version_cas", {sku: 1}), "decided").reaches("decided")
        sell(strategy, {sku: 2})
        assert isinstance(a.ends().error, SoldOut)
    assert [event.name for event in a.journal].count("overtaken") == 1
    assert totals_of(sku).balanced


# The spin lock, and the checks behind it.


def test_an_expired_spin_lock_is_saved_by_the_second_line():
    """A outlives its lock and B sells the last unit: A's UPDATE is refused by the database, as sold out."""
    sku, key = (product := make()).sku, f"lab:spin:{product.sku}"
    with buyers() as start:
        a = start("A", buying("redis_spin_lock", {sku: 1}), "read").reaches("read")
        redis_store.client().pexpire(key, 1)
        eventually(lambda: not redis_store.client().exists(key), "A's lock ends")
        assert start("B", buying("redis_spin_lock", {sku: 1})).ends().error is None
        assert isinstance(a.ends().error, SoldOut)
    assert ("A", "second_line") in {(event.buyer, event.name) for event in a.journal}
    assert totals_of(sku).balanced


def test_a_late_holder_leaves_anothers_spin_lock_alone():
    """A's lock has ended and B holds it: A's compare-and-delete finds B's token and deletes nothing."""
    sku, key = (product := make(5)).sku, f"lab:spin:{product.sku}"
    with buyers() as start:
        a = start("A", buying("redis_spin_lock", {sku: 1}), "read").reaches("read")
        redis_store.client().pexpire(key, 1)
        eventually(lambda: not redis_store.client().exists(key), "A's lock ends")
        b = start("B", buying("redis_spin_lock", {sku: 1}), "read").reaches("read")
        token = redis_store.client().get(key)
        a.ends()
        assert redis_store.client().get(key) == token, "B still holds its lock"
        b.ends()
    assert not redis_store.client().exists(key)
    assert totals_of(sku).balanced


def test_a_killed_holders_spin_lock_ends_by_itself():
    """SIGKILL leaves the lock with an expiry, never without one."""
    sku, key = (product := make()).sku, f"lab:spin:{product.sku}"
    with process_buyers() as start:
        start("redis_spin_lock", sku, stop="locked").reaches("locked").is_killed()
    assert 0 < redis_store.client().pttl(key) <= RedisSpinLock.expiry * 1000


# The fence.


@pytest.fixture
def first_line_only(monkeypatch, settings):
    """`fenced_lock` without its conditional UPDATE: what holds then is the fence alone.

    No watchdog comes by meanwhile: it would find out that Redis has forgotten A's lock.
    """
    settings.LOCKING = {alias: {**entry, "WATCHDOG_TTL": 60.0} for alias, entry in settings.LOCKING.items()}

    def blindly(product: Product, units: int) -> bool:
        less = {"on_hand": F("on_hand") - units, "version": F("version") + 1}
        return bool(Product.objects.filter(pk=product.pk).update(**less))

    monkeypatch.setattr("orders.lab.strategies.base.subtract", blindly)


def test_a_fenced_holder_whose_lock_was_lost_keeps_the_next_one_waiting(first_line_only, redis_database):
    """Redis forgets A's lock while A is behind its fence: B has the lock, waits for A, and is sold out."""
    sku = make().sku
    with buyers() as start:
        a = start("A", buying("fenced_lock", {sku: 1}), "read").reaches("read")
        redis_database.flushdb()
        b = start("B", buying("fenced_lock", {sku: 1}))
        assert b.ends_or_waits() == "waits"
        assert a.ends().error is None
        assert isinstance(b.ends().error, SoldOut)
    assert totals_of(sku).balanced


def test_a_fenced_holder_that_was_overtaken_may_try_again(first_line_only, redis_database):
    """A is paused between lock and fence, B sells meanwhile: A is refused, is Busy, and then sold out."""
    sku = make().sku
    with buyers() as start:
        a = start("A", buying("fenced_lock", {sku: 1}), "locked").reaches("locked")
        redis_database.flushdb()
        assert start("B", buying("fenced_lock", {sku: 1})).ends().error is None
        overtaken = a.ends().error
    assert isinstance(overtaken, Busy)
    assert isinstance(overtaken.__cause__, StaleFencingToken)
    assert totals_of(sku).balanced
    with pytest.raises(SoldOut):
        sell("fenced_lock", {sku: 1})


def test_the_same_pause_without_the_fence_sells_twice(first_line_only, redis_database, monkeypatch):
    """What the two tests above show is the fence's doing: without it the same interleaving oversells."""
    undecorated = inspect.unwrap(FencedLock._sell_locked)
    unfenced = distributed_lock(key=lock_names, wait=10, on_conflict="raise")(undecorated)
    monkeypatch.setattr(FencedLock, "_sell_locked", unfenced)
    sku = make().sku
    with buyers() as start:
        a = start("A", buying("fenced_lock", {sku: 1}), "read").reaches("read")
        redis_database.flushdb()
        assert start("B", buying("fenced_lock", {sku: 1})).ends().error is None
        assert a.ends().error is None
    assert totals_of(sku).oversold == 1


def test_an_expired_lease_says_nothing_to_its_holder():
    """A outlives its lease, B sells its unit, and A's own order looks like any other: no error anywhere."""
    sku = make(2).sku
    with buyers() as start:
        a = start("A", buying("expired_lease", {sku: 1}), "read").reaches("read")
        b = start("B", buying("expired_lease", {sku: 1})).ends()
        outcome = a.ends()
    assert (outcome.error, b.error) == (None, None)
    assert totals_of(sku).unaccounted == -1


# Stock in Redis.


@pytest.mark.parametrize("strategy", IN_REDIS)
def test_a_refusal_asks_nothing_of_the_database(strategy, django_assert_num_queries):
    """When Redis knows that the stock is gone, the database isn't asked."""
    sku = make(1, guarded=True).sku
    sell(strategy, {sku: 1})
    with django_assert_num_queries(0), pytest.raises(SoldOut):
        sell(strategy, {sku: 1})


@pytest.mark.parametrize("strategy", IN_REDIS)
def test_a_crash_after_the_script_costs_units_until_the_reload(strategy):
    """SIGKILL between Redis and the commit leaves Redis too low, the database right; a reload repairs it."""
    sku = make(3).sku
    with process_buyers() as start:
        start(strategy, sku, 2, stop="recorded").reaches("recorded").is_killed()
    eventually(lambda: stock_is_idle(), "PostgreSQL rolls the dead buyer back")
    assert totals_of(sku).left == 3
    with pytest.raises(SoldOut):
        sell(strategy, {sku: 3})
    get_strategy(strategy).forget(Product.objects.filter(sku=sku))
    sell(strategy, {sku: 3})
    assert totals_of(sku).balanced


@pytest.mark.parametrize(("stop", "sold"), [("decided", 0), ("recorded", 0), ("committed", 1)])
def test_what_a_dead_buyer_left_in_the_ledger_is_settled_by_its_order(stop, sold):
    """Killed before its commit, a buyer's units go back; after it, its entry is struck."""
    sku = make(3).sku
    with process_buyers() as start:
        start("redis_gate", sku, 2, stop=stop).reaches(stop).is_killed()
    eventually(stock_is_idle, "PostgreSQL rolls the dead buyer back")
    gate = get_strategy("redis_gate")
    assert gate.reconcile(older_than=60) == 0, "it may be at work"
    assert [gate.reconcile(older_than=0), gate.reconcile(older_than=0)] == [1, 0]
    sell("redis_gate", {sku: 3 - 2 * sold})
    with pytest.raises(SoldOut):
        sell("redis_gate", {sku: 1})
    assert totals_of(sku).balanced


def stock_is_idle() -> bool:
    """Return whether no other connection has an open transaction here."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"
        )
        return bool(cursor.fetchone() == (0,))


@pytest.mark.parametrize("strategy", IN_REDIS)
def test_a_flushed_redis_is_loaded_again(strategy, redis_database):
    """After a flush the next buyer loads the stock from the database, and the count stays right."""
    sku = make(3, guarded=True).sku
    sell(strategy, {sku: 1})
    redis_database.flushdb()
    sell(strategy, {sku: 2})
    with pytest.raises(SoldOut):
        sell(strategy, {sku: 1})
    assert totals_of(sku).balanced


@pytest.mark.parametrize("strategy", IN_REDIS)
def test_units_given_back_after_a_flush_do_not_pass_for_the_whole_stock(strategy, redis_database):
    """A fails after a flush of Redis: its units aren't put back alone, and the full stock is found again."""
    sku = make(5, guarded=True).sku
    with buyers() as start:
        a = start("A", buying(strategy, {sku: 1}), "recorded").reaches("recorded")
        redis_database.flushdb()
        a.dies()
    sell(strategy, {sku: 5})
    assert totals_of(sku).balanced


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_forgetting_leaves_no_key(strategy):
    """After `forget` Redis holds nothing of the product."""
    product = make(10, guarded=True)
    get_strategy(strategy).prepare([product])
    if strategy in LEFT_BEHIND:
        redis_store.client().set(f"lab:{LEFT_BEHIND[strategy]}:{product.sku}", 1)
    get_strategy(strategy).forget([product])
    assert list(redis_store.client().scan_iter(f"*{product.sku}*")) == []


def segment_units(sku: str) -> list[int]:
    """Return what the segments of `sku` hold."""
    return [int(redis_store.client().get(key)) for key in Segmented()._keys([sku])]


def test_a_hundred_units_over_five_segments():
    """100 units are 20 in each of 5 keys, and 103 are spread as evenly as they can be."""
    for on_hand, units in ((100, [20] * 5), (103, [21, 21, 21, 20, 20]), (0, [0] * 5)):
        product = make(on_hand, guarded=True)
        get_strategy("segmented").prepare([product])
        assert segment_units(product.sku) == units


@pytest.mark.parametrize("first", range(5))
def test_drained_segments_are_skipped(first, monkeypatch):
    """Whichever segment a buyer begins at, it finds the one unit that is left in another."""
    monkeypatch.setattr(
        "orders.lab.strategies.segmented.random.sample", lambda keys, k: keys[first:] + keys[:first]
    )
    product = make(1, guarded=True)
    get_strategy("segmented").prepare([product])
    sell("segmented", {product.sku: 1})
    assert segment_units(product.sku) == [0] * 5
    assert totals_of(product.sku).balanced


def test_a_line_may_span_segments():
    """A line of 3 over segments of 1, 1, 1 is served, and the next buyer is refused with what is left."""
    product = make(4, guarded=True)
    get_strategy("segmented").prepare([product])
    sell("segmented", {product.sku: 3})
    with pytest.raises(SoldOut) as refused:
        sell("segmented", {product.sku: 2})
    assert refused.value.shortages[0].available == 1
    sell("segmented", {product.sku: 1})
    assert segment_units(product.sku) == [0] * 5


def test_a_hundred_single_buyers_drain_every_segment():
    """100 units over 5 keys serve exactly 100 buyers of one."""
    product = make(100, guarded=True)
    for _ in range(100):
        sell("segmented", {product.sku: 1})
    with pytest.raises(SoldOut):
        sell("segmented", {product.sku: 1})
    assert totals_of(product.sku).sold == 100
    assert segment_units(product.sku) == [0] * 5


@pytest.mark.parametrize("strategy", ["redis_script", "redis_spin_lock"])
def test_a_redis_that_does_not_answer_is_unavailable_not_sold_out(strategy, settings):
    """Without Redis nothing is sold, and no buyer hears that the stock is gone."""
    sku = make(10, guarded=True).sku
    settings.REDIS_URL = "redis://127.0.0.1:1/0"  # nothing listens there
    with pytest.raises(BackendUnavailable):
        sell(strategy, {sku: 1})
    assert Order.objects.count() == 0

"""Each broken strategy oversells in the one interleaving that its docstring tells, every time."""

from __future__ import annotations

import time

import pytest

from locking import LockDeadlock
from orders.lab import redis_store
from orders.lab.cart import Busy, SoldOut
from orders.lab.strategies import STRATEGIES
from orders.lab.strategies.setnx_expire_del import SetnxExpireDel
from orders.lab.strategies.setnx_getset import SetnxGetset
from orders.lab.strategies.unsorted_redis_locks import UnsortedRedisLocks
from tests.lab.interleaving import buyers, eventually
from tests.lab.processes import process_buyers
from tests.lab.products import buying, make, sell
from tests.lab.totals import totals_of
from tests.locking.support.helpers import publishing

pytestmark = pytest.mark.django_db(transaction=True)


def redis():
    """Return the Redis that the strategies use."""
    return redis_store.client()


def test_a_lost_update_leaves_a_stock_that_looks_healthy():
    """Two orders of one unit each leave nine of ten: one was sold twice and the stock doesn't show it."""
    sku = make(10).sku
    with buyers() as start:
        a = start("A", buying("lost_update", {sku: 1}), "read").reaches("read")
        assert start("B", buying("lost_update", {sku: 1})).ends().error is None
        assert a.ends().error is None
    kept = totals_of(sku)
    assert (kept.sold, kept.left, kept.unaccounted) == (2, 9, -1)


def test_a_lost_update_sells_the_last_unit_twice():
    """Two buyers read the last unit, and both get it."""
    sku = make().sku
    with buyers() as start:
        a = start("A", buying("lost_update", {sku: 1}), "read").reaches("read")
        start("B", buying("lost_update", {sku: 1})).ends()
        a.ends()
    assert totals_of(sku).oversold == 1
    assert totals_of(sku).left == 0


def test_a_lost_update_is_not_stopped_by_the_guard():
    """The CHECK sees nothing wrong with a stock that was computed from a stale one."""
    sku = make(1, guarded=True).sku
    with buyers() as start:
        a = start("A", buying("lost_update", {sku: 1}), "read").reaches("read")
        start("B", buying("lost_update", {sku: 1})).ends()
        a.ends()
    assert totals_of(sku).oversold == 1


def test_a_negative_stock_shows():
    """Both buyers pass the check in memory, both subtractions count, and the stock ends below zero."""
    sku = make().sku
    with buyers() as start:
        a = start("A", buying("negative_stock", {sku: 1}), "read").reaches("read")
        assert start("B", buying("negative_stock", {sku: 1})).ends().error is None
        assert a.ends().error is None
    kept = totals_of(sku)
    assert (kept.oversold, kept.left, kept.unaccounted) == (1, -1, 0)


def test_a_negative_stock_is_refused_by_the_guard():
    """On a guarded product the database's CHECK turns the second buyer away, as sold out."""
    sku = make(1, guarded=True).sku
    with buyers() as start:
        a = start("A", buying("negative_stock", {sku: 1}), "read").reaches("read")
        start("B", buying("negative_stock", {sku: 1})).ends()
        refused = a.ends().error
    assert isinstance(refused, SoldOut)
    assert totals_of(sku).balanced
    assert totals_of(sku).sold == 1


def test_an_early_release_lets_the_next_holder_read_what_was_there_before():
    """B locks after A's release and before A's commit, reads A's unit as unsold, and sells it again."""
    sku = make().sku
    with buyers() as start:
        a = start("A", buying("early_release", {sku: 1}), "unlocked").reaches("unlocked")
        b = start("B", buying("early_release", {sku: 1}))
        assert b.ends_or_waits() == "waits", (
            "B's write waits for A's row: B is past the lock and past its read"
        )
        assert [event.name for event in b.journal if event.buyer == "B"][-1] == "decided"
        assert a.ends().error is None
        assert b.ends().error is None
    assert totals_of(sku).oversold == 1


def crossed_baskets(strategy):
    """Let A begin with the pen and B with the mug; return how both end, and the journal's deadlocks."""
    pen, mug = make(2).sku, make(2).sku
    with buyers() as start:
        a = start("A", buying(strategy, {pen: 1, mug: 1}), "locked").reaches("locked")
        b = start("B", buying(strategy, {mug: 1, pen: 1}), "locked")
        if b.ends_or_waits_or_stops() == "stops":
            b.goes_on()
            b.ends_or_waits()
        ends = [a.ends().error, b.ends().error]
    return ends, [event.name for event in a.journal if event.name == "deadlocked"]


def test_unsorted_locks_wait_in_a_circle():
    """A has the pen and wants the mug, B the reverse: the database ends one, in a full shop."""
    ends, deadlocks = crossed_baskets("unsorted_locks")
    assert sorted(type(error).__name__ for error in ends) == ["Busy", "NoneType"]
    assert deadlocks == ["deadlocked"]


def test_unsorted_redis_locks_wait_in_a_circle(monkeypatch):
    """The same two baskets under distributed locks: no database sees it, LockDeadlock ends it."""
    monkeypatch.setattr(UnsortedRedisLocks, "wait", 20.0)  # a look that comes late finds both still waiting
    pen, mug = make(2).sku, make(2).sku
    strategy = "unsorted_redis_locks"
    with publishing(), buyers() as start:
        a = start("A", buying(strategy, {pen: 1, mug: 1}), "decided")
        b = start("B", buying(strategy, {mug: 1, pen: 1}), "decided")
        for one in (a.reaches("decided"), b.reaches("decided")):
            one.goes_on()
        ends = [a.ends().error, b.ends().error]
    assert sorted(type(error).__name__ for error in ends) == ["Busy", "NoneType"]
    (busy,) = filter(None, ends)
    assert isinstance(busy.__cause__, LockDeadlock)
    assert [event.name for event in a.journal if event.name == "deadlocked"] == ["deadlocked"]
    assert (totals_of(pen).sold, totals_of(mug).sold) == (1, 1)


def test_ordered_locks_wait_in_line():
    """The same two baskets in one order: B waits before its first lock, and both are served."""
    ends, deadlocks = crossed_baskets("ordered_locks")
    assert (ends, deadlocks) == ([None, None], [])


def test_a_lock_after_the_read_protects_what_is_old():
    """A and B read the last unit before either has the lock; under it B sells what A has sold."""
    sku = make().sku
    with buyers() as start:
        b = start("B", buying("lock_after_read", {sku: 1}), "read").reaches("read")
        assert start("A", buying("lock_after_read", {sku: 1})).ends().error is None
        assert b.ends().error is None
    assert totals_of(sku).oversold == 1
    assert totals_of(sku).left == 0


@pytest.mark.parametrize("strategy", ["setnx_expire_del", "setnx_getset", "expired_lease"])
def test_a_holder_that_outlasts_its_lock_is_overtaken(strategy):
    """A's lock ends while A works: B takes it, reads what A has read, and both sell the last unit."""
    sku = make().sku
    with buyers() as start:
        a = start("A", buying(strategy, {sku: 1}), "read").reaches("read")
        assert start("B", buying(strategy, {sku: 1})).ends().error is None
        assert a.ends().error is None
    assert totals_of(sku).oversold == 1


def test_a_crash_between_setnx_and_expire_holds_for_ever(monkeypatch):
    """A buyer who dies between the two calls leaves an endless lock; all after it hear *try again*."""
    monkeypatch.setattr(SetnxExpireDel, "wait", 0.05)
    sku = make().sku
    with buyers() as start:
        start("A", buying("setnx_expire_del", {sku: 1}), "locked").reaches("locked").dies()
        assert redis().ttl(f"lab:lock:{sku}") == -1, "no expiry"
        assert isinstance(start("B", buying("setnx_expire_del", {sku: 1})).ends().error, Busy)
    assert totals_of(sku).left == 1


def test_a_late_holder_deletes_anothers_lock(monkeypatch):
    """A's lock has ended and B holds it; A deletes it all the same, and C comes in beside B."""
    monkeypatch.setattr(SetnxExpireDel, "expiry", 60.0)
    sku, key = (product := make(5)).sku, f"lab:lock:{product.sku}"
    with buyers() as start:
        a = start("A", buying("setnx_expire_del", {sku: 1}), "read").reaches("read")
        redis().pexpire(key, 1)  # its time is up
        eventually(lambda: not redis().exists(key), "A's lock ends")
        b = start("B", buying("setnx_expire_del", {sku: 1}), "read").reaches("read")
        assert redis().exists(key), "B holds the lock"
        a.ends()
        assert not redis().exists(key), "and A has deleted it"
        c = start("C", buying("setnx_expire_del", {sku: 1})).ends()
        assert c.error is None
        b.ends()
    kept = totals_of(sku)
    assert (kept.sold, kept.unaccounted) == (3, 5 - 3 - kept.left)
    assert kept.unaccounted < 0


def test_a_fast_clock_takes_a_lock_that_has_not_ended(monkeypatch):
    """A's lock has a minute left; B's clock is two minutes fast, so B takes it over and sells A's unit."""
    monkeypatch.setattr(SetnxGetset, "expiry", 60.0)
    sku = make().sku
    with buyers() as start:
        a = start("A", buying("setnx_getset", {sku: 1}), "read").reaches("read")
        monkeypatch.setattr(SetnxGetset, "clock", lambda self: time.time() + 120)
        assert start("B", buying("setnx_getset", {sku: 1})).ends().error is None
        assert a.ends().error is None
    assert totals_of(sku).oversold == 1


def test_a_loser_overwrites_the_winners_stamp(monkeypatch):
    """B and C find one stamp past; B wins, and C's GETSET, though it loses, puts C's stamp over B's."""
    monkeypatch.setattr(SetnxGetset, "expiry", 60.0)
    monkeypatch.setattr(SetnxGetset, "wait", 0.0)
    sku, key = (product := make()).sku, f"lab:stamp:{product.sku}"
    redis().set(key, "1.0")  # a holder that died long ago
    with buyers() as start:
        c = start("C", buying("setnx_getset", {sku: 1}), "waiting").reaches("waiting")
        b = start("B", buying("setnx_getset", {sku: 1}), "read").reaches("read")
        winners = redis().get(key)
        assert isinstance(c.ends().error, Busy)
        assert redis().get(key) != winners, "the lock's value is no longer its holder's"
        b.ends()


def test_a_local_lock_is_two_locks_in_two_processes():
    """Each process has a lock of its own: both buyers hold 'the' lock, read 1, and sell it."""
    sku = make().sku
    with process_buyers() as start:
        a = start("local_lock", sku).reaches("read")
        b = start("local_lock", sku).reaches("read")
        assert (a.ends(), b.ends()) == ("sold", "sold")
    assert (totals_of(sku).oversold, totals_of(sku).left) == (1, -1)


def test_every_broken_strategy_is_shown_broken_here():
    """The registry has no broken strategy that this module doesn't know."""
    shown = {
        "lost_update",
        "negative_stock",
        "early_release",
        "unsorted_locks",
        "unsorted_redis_locks",
        "lock_after_read",
        "expired_lease",
        "setnx_expire_del",
        "setnx_getset",
    }
    assert {name for name, strategy in STRATEGIES.items() if not strategy.sound} == shown


def test_one_buyer_alone_never_notices():
    """Without a second buyer every broken strategy sells exactly its stock: that is why such code ships."""
    for name in [name for name, strategy in STRATEGIES.items() if not strategy.sound]:
        sku = make(2).sku
        for _ in range(2):
            sell(name, {sku: 1})
        with pytest.raises(SoldOut):
            sell(name, {sku: 1})
        assert totals_of(sku).balanced
        assert totals_of(sku).left == 0

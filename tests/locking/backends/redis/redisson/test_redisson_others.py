"""What else Redisson has, measured beside Python: what works, what starves, what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from locking import (
    BackendError,
    Lock,
    LockNotAcquired,
    get_lock,
    get_read_lock,
    get_semaphore,
    get_write_lock,
)
from locking.backends.redis.scripts import Index, Ordinary
from locking.contrib.redisson import get_fair_lock
from locking.inspection.held import held_locks
from tests.backends import any_engine
from tests.locking.backends.redis.redisson.harness import FETCHING, missing
from tests.locking.backends.redis.topologies.servers import until
from tests.locking.backends.redis.topologies.waiters import acquired_in_thread, in_thread, until_waiting

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.timeout(FETCHING),
]

PROMPT = 20.0
"""Seconds within which a wake-up has surely come; the leases here last a minute."""

PAIR = "{pair}:1,{pair}:2"
REVERSED = "{pair}:2,{pair}:1"
NAMES = PAIR.split(",")
CHANNEL = Ordinary(Index()).channel(NAMES[0], "")


# RMultiLock


def test_a_multi_lock_in_sorted_order_excludes(site):
    """Java's multi-lock keeps Python from each of its names, and Python's keeps Java from all."""
    assert site.java.do("try", PAIR, kind="multi") == "true"
    for name in NAMES:
        assert get_lock(name).try_acquire() is None
    assert get_lock(*NAMES).try_acquire() is None
    assert site.java.do("unlock", PAIR, kind="multi") == "done"
    with get_lock(*NAMES):
        assert site.java.do("try", PAIR, kind="multi") == "false"


def test_a_multi_lock_in_sorted_order_wakes_and_is_woken(site):
    """Python has both names soon after Java lets them go, and Java soon after Python does."""
    assert site.java.do("try", PAIR, kind="multi") == "true"
    python = in_thread(lambda: get_lock(*NAMES).acquire())
    until(lambda: site.listeners(CHANNEL), "Python's waiting")
    assert site.java.do("unlock", PAIR, kind="multi") == "done"
    lease = python.result(PROMPT)
    java = site.java.begin("main", "wait", PAIR, kind="multi")
    until(lambda: site.listeners(CHANNEL), "Java's waiting")
    lease.release()
    assert java.result(PROMPT) == "true"
    assert site.java.do("unlock", PAIR, kind="multi") == "done"


def test_a_multi_lock_in_another_order_waits_for_python_that_waits_for_it(site):
    """Java has the second name and waits for the first; Python the other way round: neither goes on."""
    first = get_lock(NAMES[0]).acquire()
    java = site.java.begin("main", "wait", REVERSED, kind="multi")
    until(lambda: site.listeners(CHANNEL), "Java's waiting")
    with pytest.raises(LockNotAcquired):
        get_lock(NAMES[1], wait=0.2).acquire()
    assert not java.done()
    first.release()
    assert java.result(PROMPT) == "true"
    assert site.java.do("unlock", REVERSED, kind="multi") == "done"


# RSpinLock


def test_a_spin_lock_excludes(site):
    """It is the same hash as a lock: each side keeps the other out."""
    assert site.java.do("try", "shared", kind="spin") == "true"
    assert get_lock("shared").try_acquire() is None
    assert site.java.do("unlock", "shared", kind="spin") == "done"
    with get_lock("shared"):
        assert site.java.do("try", "shared", kind="spin") == "false"


def test_a_spin_lock_wakes_no_other(site):
    """Its release publishes nothing: a waiter of either side sleeps until the lease would have ended."""
    assert site.java.do("try", "shared", kind="spin") == "true"
    home = site.home("shared")
    with home.client() as client, client.pubsub(ignore_subscribe_messages=True) as near_listener:
        near_listener.subscribe("redisson_lock__channel:{shared}")
        near_listener.parse_response(block=True, timeout=PROMPT)
        assert site.java.do("unlock", "shared", kind="spin") == "done"
        client.publish("redisson_lock__channel:{shared}", "the end")
        assert near_listener.get_message(timeout=PROMPT)["data"] == b"the end"


def test_a_spin_lock_starves_behind_python_waiters(site):
    """It isn't queued and gets no message: Python hands the lock on, and Java doesn't find it free."""
    held = get_lock("shared").acquire()
    spinning = site.java.begin("main", "wait", "shared", kind="spin")
    for _ in range(20):
        waiter = acquired_in_thread("shared")
        until_waiting(site.home("shared"), "shared")
        held.release()
        held = waiter.result(PROMPT)
    assert not spinning.done()
    held.release()
    assert spinning.result(PROMPT) == "true"
    assert site.java.do("unlock", "shared", kind="spin") == "done"


# RSemaphore


def test_a_plain_semaphore_shares_python_s_permits(site):
    """Once Python has said how many there are, both draw from them and wake each other."""
    mine = get_semaphore("shared", 2).acquire()
    assert site.java.do("permits", "shared", 7, kind="plain-semaphore") == "false"
    assert site.java.do("try", "shared", kind="plain-semaphore") == "true"
    assert site.java.do("try", "shared", kind="plain-semaphore") == "false"
    assert get_semaphore("shared", 2).try_acquire() is None

    java = site.java.begin("other", "wait", "shared", kind="plain-semaphore")
    until(lambda: site.listeners("redisson_sc:{shared}"), "Java's waiting")
    mine.release()
    assert java.result(PROMPT) == "true"

    python = in_thread(lambda: get_semaphore("shared", 2).acquire())
    until(lambda: site.listeners("redisson_sc:{shared}"), "Python's waiting")
    assert site.java.do("unlock", "shared", kind="plain-semaphore") == "done"
    python.result(PROMPT).release()
    assert site.java.do("unlock", "shared", kind="plain-semaphore") == "done"
    assert site.java.do("left", "shared", kind="plain-semaphore") == "2"


@pytest.mark.parametrize("kind", ["semaphore", "plain-semaphore"])
def test_permits_that_java_set_are_used_once_they_are_declared(site, kind):
    """A number that Java set may be anything; the error says which key tells that it is a semaphore."""
    assert site.java.do("permits", "shared", 2, kind=kind) == "true"
    with pytest.raises(BackendError, match="no semaphore") as caught:
        get_semaphore("shared", 2).try_acquire()
    declared = re.search("set '(.*)' to the number of its permits", str(caught.value))
    assert declared
    with site.home("shared").client() as client:
        client.set(declared[1], 2)
    with get_semaphore("shared", 2):
        assert site.java.do("left", "shared", kind=kind) == "1"


# RCountDownLatch


def test_a_count_down_latch_is_refused_everywhere(site):
    """No kind of lock is granted on its name, and its count stays as it is."""
    assert site.java.do("count", "shared", 3, kind="latch") == "true"
    gets: list[Callable[..., Lock]] = [
        get_lock,
        get_read_lock,
        get_write_lock,
        get_fair_lock,
        lambda name: get_semaphore(name, 3),
    ]
    for get in gets:
        with pytest.raises(BackendError, match="the key 'shared' holds a string of another use"):
            get("shared").try_acquire()
        with pytest.raises(BackendError, match="the key 'shared' holds a string of another use"):
            get("shared").locked()
    assert held_locks().rows == []
    assert site.java.do("left", "shared", kind="latch") == "3"


# what an operator sees


def test_a_java_permit_without_a_lease_has_no_end(site):
    """Neither the list nor a refusal makes thirty thousand years of Redisson's number."""
    get_semaphore("shared", 1).acquire().release()
    assert site.java.do("endless", "shared", kind="semaphore") == "true"
    with pytest.raises(LockNotAcquired) as caught:
        get_semaphore("shared", 1, wait=0).acquire()
    assert caught.value.retry_after is None
    until(lambda: [row.kind for row in held_locks().rows] == ["semaphore"], "the permit on the list")
    assert [row.remaining for row in held_locks().rows] == [None]
    assert site.java.do("unlock", "shared", kind="semaphore") == "done"


def test_a_java_fair_lock_is_listed_as_one_and_breaking_it_wakes_its_line(site):
    """Once someone waits for it; the waiter has the lock soon after an operator broke it."""
    assert site.java.do("try", "shared", kind="fair") == "true"
    waiter = site.java.begin("other", "wait", "shared", kind="fair")
    until(lambda: "redisson_lock_queue:{shared}" in site.names_on(site.home("shared")), "a queue")
    until(lambda: [row.kind for row in held_locks().rows] == ["fair"], "the fair lock on the list")
    (row,) = held_locks().rows
    assert row.waiters == 1
    assert any_engine().variant("fair").force_release(row.key, row.owner)
    assert waiter.result(PROMPT) == "true"
    assert site.java.do("unlock", "shared", kind="fair", thread="other") == "done"


def test_breaking_what_was_shown_as_a_lock_wakes_a_fair_line_too(site):
    """The list showed it before anyone waited: on the server it was a lock like any other."""
    assert site.java.do("try", "shared", kind="fair") == "true"
    until(lambda: [row.kind for row in held_locks().rows] == ["lock"], "the lock on the list")
    (row,) = held_locks().rows
    waiter = site.java.begin("other", "wait", "shared", kind="fair")
    until(lambda: "redisson_lock_queue:{shared}" in site.names_on(site.home("shared")), "a queue")
    assert any_engine().force_release(row.key, row.owner)
    assert waiter.result(PROMPT) == "true"
    assert site.java.do("unlock", "shared", kind="fair", thread="other") == "done"

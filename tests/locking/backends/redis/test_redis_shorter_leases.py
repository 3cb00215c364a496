"""A lease on Redis is made shorter while others wait: none of them sleeps until the end that it knew."""

import pytest

from locking.backends.base import Busy
from locking.backends.capabilities import backend_of
from locking.backends.redis import redisson_kinds, scripts
from locking.backends.redis.scripts import Ordinary
from locking.backends.redis.transport import run
from locking.core.handler import locks
from locking.utils.clock import now
from locking.utils.ownership import new_owner

PATIENCE = 30.0


@pytest.fixture(params=["lock", "fair"])
def backend(own_redis, locks_on, request):
    """A kind of lock that has a queue, on an empty server."""
    locks_on(own_redis.url)
    return backend_of(locks["default"], request.param)


def hears(waiter, seconds):
    """Return what a waiter learns when a message has it ask; None where none came in this time."""
    waiting = waiter._waiter
    if run(waiting._received(waiting._subscription, now() + seconds)):
        return waiter.try_acquire(queue=True)
    return None


def end_that_the_second_knows(backend, seconds):
    """Make a lease of a minute shorter, have the first of two waiters leave, and ask the second.

    Args:
        seconds: how long the second listens.

    Returns:
        The end of the lease, in seconds from now, of which the second has heard; None where it has not.
    """
    holder = new_owner()
    backend.try_acquire("a", holder, 60.0)
    waiters = [backend.waiter("a", new_owner(), 60.0) for _ in range(2)]
    for waiter in waiters:
        assert isinstance(waiter.try_acquire(queue=True), Busy)
    assert backend.shorten("a", holder, 5.0)
    first, second = waiters
    first.leave()
    try:
        reported = hears(second, seconds)
        return reported.retry_after if isinstance(reported, Busy) else None
    finally:
        second.leave()


def test_a_waiter_hears_of_a_shorter_lease_although_the_first_leaves(backend):
    """A later waiter learns the new end, too: it gets its turn then, though the first has given up."""
    assert 0 < end_that_the_second_knows(backend, PATIENCE) <= 5.0


def test_a_script_that_tells_the_first_only_is_found_out(backend, monkeypatch):
    """The mutant leaves the second to sleep until the end that it learned first."""
    real = scripts._read
    cut = {"handoff": (b"0, -1)) do\n        local owner,", b"0, 0)) do\n        local owner,")}
    cut["extend_fair"] = (b"0, -1) or {}", b"0, 0) or {}")
    monkeypatch.setattr(scripts, "_read", lambda name: real(name).replace(*cut.get(name, (b"", b""))))
    monkeypatch.setattr(Ordinary, "SHORTEN", scripts.Script(*Ordinary.SHORTEN.names))
    monkeypatch.setattr(redisson_kinds.Fair, "EXTEND", scripts.Script(*redisson_kinds.Fair.EXTEND.names))
    assert end_that_the_second_knows(backend, 0.3) is None


def end_after_a_handoff(locks_on, own_redis, seconds):
    """Hand a lock whose lease was long to a waiter whose own is short, and ask the one behind it.

    Args:
        seconds: how long the one behind listens.

    Returns:
        The end of the lease, in seconds from now, of which it has heard; None where it has not.
    """
    locks_on(own_redis.url)
    backend, holder = locks["default"], new_owner()
    backend.try_acquire("a", holder, 60.0)
    brief, behind = (backend.waiter("a", new_owner(), ttl) for ttl in (5.0, 60.0))
    for waiter in (brief, behind):
        assert isinstance(waiter.try_acquire(queue=True), Busy)
    backend.release("a", holder)
    try:
        reported = hears(behind, seconds)
        return reported.retry_after if isinstance(reported, Busy) else None
    finally:
        for waiter in (behind, brief):
            waiter.leave()


def test_a_waiter_hears_that_the_next_lease_is_shorter(own_redis, locks_on):
    """Should the one before it be killed, it gets its turn at that lease's end, not later."""
    assert 0 < end_after_a_handoff(locks_on, own_redis, PATIENCE) <= 5.0


def test_a_handoff_that_notifies_no_other_is_found_out(own_redis, locks_on, monkeypatch):
    """The mutant leaves those behind to sleep until the end of the former lease."""
    real = scripts._read
    monkeypatch.setattr(scripts, "_read", lambda name: real(name).replace(b"or tonumber(ttl) < left", b""))
    monkeypatch.setattr(scripts, "RELEASE", scripts.Script(*scripts.RELEASE.names))
    assert end_after_a_handoff(locks_on, own_redis, 0.3) is None

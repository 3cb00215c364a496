"""Observers and the log: called at once, in the thread where it happens, free when unused."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from locking import LockLost, LockNotAcquired, get_lock, get_read_lock, locked_transaction
from locking.core.renewal import renew
from locking.signals import Observer
from locking.testing import simulate_contention, simulate_loss
from locking.transactions.decorator import distributed_lock
from locking.utils.clock import now
from locking.utils.ownership import new_owner
from tests.backends import any_engine
from tests.locking.support.observing import observed_by

pytestmark = pytest.mark.usefixtures("memory_locks")


class Listener(Observer):
    """Writes down what it hears, and in which thread."""

    def __init__(self):
        self.heard = []

    def happened(self, event):
        """Write it down."""
        self.heard.append((event.outcome, event.name, event.template, threading.current_thread()))

    def waiting(self, name, template, backend, change):
        """Write it down."""
        self.heard.append(("waiting", name, template, change))

    def renewed(self, backend, outcome, leases):
        """Write it down."""
        self.heard.append((outcome, backend, leases))


@pytest.fixture
def heard():
    """What an observer hears during the test."""
    with observed_by(Listener()) as listener:
        yield listener.heard


def test_an_observer_hears_at_once_in_the_same_thread(heard):
    """Nothing is queued: acquired is sent before acquire returns, released before release does."""
    me = threading.current_thread()
    lease = get_lock("a", template="<letter>").acquire()
    assert heard == [("acquired", "a", "<letter>", me)]
    lease.release()
    assert heard[1:] == [("released", "a", "<letter>", me)]


def test_an_observer_hears_who_waits(heard):
    """One begins to wait when the first try failed, and ceases when the wait has run out."""
    with simulate_contention("a"), pytest.raises(LockNotAcquired):
        get_lock("a", wait=0.01).acquire()
    outcomes = [entry for entry in heard if entry[1] == "a"]
    assert [entry[0] for entry in outcomes] == ["waiting", "waiting", "contended"]
    assert [entry[3] for entry in outcomes[:2]] == [1, -1]


async def test_an_observer_hears_who_awaits(heard):
    """A cancelled waiter has ceased to wait."""
    with simulate_contention("a"):
        waiter = asyncio.ensure_future(get_lock("a", wait=None).aacquire())
        while ("waiting", "a", None, 1) not in heard:
            await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
    assert ("waiting", "a", None, -1) in heard


def test_an_observer_hears_of_renewals(heard):
    """A batch is reported once: how many leases were renewed and how many lost."""
    (kept,) = get_lock("kept").acquire().leases
    (lost,) = get_lock("lost").acquire().leases
    any_engine().force_release(lost.key, lost.owner)
    renew([kept, lost])
    assert ("renewed", "default", 1) in heard
    assert ("lost", "default", 1) in heard


def test_an_observer_that_raises_harms_no_other(heard, caplog):
    """The lock is taken and released, other observers hear of it, and the log has the error."""

    class Broken(Observer):
        def happened(self, event):
            raise RuntimeError("broken observer")

    with observed_by(Broken()), get_lock("a") as lease:
        lease.ensure_held()
    assert [entry[0] for entry in heard] == ["acquired", "released"]
    assert "broken observer" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_a_decorated_function_tells_its_template(heard):
    """The key's template is the label, whatever it names; without a key the function's path is."""

    @distributed_lock(key="'order:'+<order_id>+':'+<kind|'any'>")
    def pay(order_id, kind=None): ...

    @distributed_lock(key=["'sku:'+<a>", "'sku:'+<b>"])
    def move(a, b): ...

    @distributed_lock
    def count(what): ...

    pay(7)
    move(1, 2)
    count("sheep")
    templates = [entry[2] for entry in heard if entry[0] == "acquired"]
    assert templates[:3] == ["order:<order_id>:<kind>", "sku:<a>, sku:<b>", "sku:<a>, sku:<b>"]
    assert templates[3].endswith("count")
    assert "sheep" not in templates[3]


async def test_a_decorated_coroutine_tells_its_template(heard):
    """The same for asyncio."""

    @distributed_lock(key="'order:'+<order_id>")
    async def pay(order_id): ...

    await pay(7)
    assert heard[0][:3] == ("acquired", "order:7", "order:<order_id>")


@pytest.mark.django_db(transaction=True)
def test_every_way_to_a_lock_takes_a_template(heard):
    """A transaction's lock and the other kinds have the argument too."""
    with locked_transaction("a", template="first"):
        pass
    with get_read_lock("b", template="second"):
        pass
    assert [entry[2] for entry in heard] == ["first", "first", "second", "second"]


@pytest.mark.parametrize("template", ["", " ", 7, "x" * 201])
def test_a_template_that_is_none_is_refused(template):
    """The error names the value and what to write instead."""
    with pytest.raises(ValueError, match="template must be a text of 1 to 200 characters") as caught:
        get_lock("a", template=template)
    assert repr(template)[:20] in str(caught.value)


def test_a_record_of_the_log_has_the_fields_of_the_event(caplog):
    """Everything that happens to a lock is one record with fields a machine reads."""
    begun = now()
    with caplog.at_level(logging.DEBUG, logger="locking"), get_lock("a", ttl=9, template="<letter>") as lease:
        pass
    took = now() - begun
    acquired, released = (each for each in caplog.records if each.thread == threading.get_ident())
    assert (acquired.lock_outcome, acquired.lock_name, acquired.lock_template) == (
        "acquired",
        "a",
        "<letter>",
    )
    assert (acquired.lock_backend, acquired.lock_owner, acquired.lock_ttl) == ("default", lease.owner, 9)
    assert released.getMessage().startswith("released the lock 'a' on backend 'default' after")
    assert 0 < acquired.lock_waited <= took
    assert 0 < released.lock_held <= took
    assert acquired.levelno == released.levelno == logging.DEBUG


def test_what_needs_attention_is_logged_above_info(caplog):
    """A lost lease is a warning; a refusal is information, for others merely had the lock."""
    with caplog.at_level(logging.INFO, logger="locking"):
        with simulate_contention("a"):
            assert get_lock("a").try_acquire() is None
        lease = get_lock("b").acquire()
        simulate_loss(lease)
        with pytest.raises(LockLost):
            lease.release()
    levels = {
        record.lock_outcome: record.levelname for record in caplog.records if hasattr(record, "lock_name")
    }
    assert levels == {"contended": "INFO", "lost": "WARNING"}


def test_without_observers_no_event_is_built(monkeypatch):
    """Without observers, receivers and a log at that level no event is built."""

    def refuse(*_args, **_kwargs):
        raise AssertionError("an event was built without a listener")

    monkeypatch.setattr("locking.core.lease.SingleLease.facts", refuse)
    with get_lock("a", backend="default"):
        assert new_owner()

"""What `locking.testing` gives to tests of other people's code."""

import asyncio
import subprocess
import sys
import threading

import pytest
from django.test import SimpleTestCase
from django.test.utils import override_settings

from locking import (
    BackendUnavailable,
    LockLost,
    LockNotAcquired,
    LockNotOwned,
    get_lock,
    get_read_lock,
    get_semaphore,
)
from locking.backends.memory import MemoryBackend
from locking.core.handler import InvalidLockBackend, locks
from locking.testing import (
    held_locks,
    isolate_locks,
    override_locks,
    simulate_contention,
    simulate_loss,
    simulate_outage,
)
from locking.testing.contract.base import begin, elsewhere, until
from tests.backends import MEMORY


def pay(order):
    """Some code under test."""
    with get_lock(f"order:{order}", wait=0):
        return "paid"


def test_locks_are_in_memory_for_the_block():
    """Inside the block no server is asked; after it the setting is as it was."""
    before = type(locks["default"])
    with override_locks():
        assert isinstance(locks["default"], MemoryBackend)
        assert pay(42) == "paid"
    assert type(locks["default"]) is before


@override_locks()
def test_a_function_may_be_decorated():
    """The same as a decorator."""
    assert isinstance(locks["default"], MemoryBackend)


@override_locks()
class DecoratedTestCase(SimpleTestCase):
    def test_a_test_case_may_be_decorated(self):
        """The same for a class of Django's."""
        assert isinstance(locks["default"], MemoryBackend)


def test_other_settings_stay(settings):
    """The alias keeps its TTL, WAIT and KEY_PREFIX."""
    settings.LOCKING = {"default": {"CACHE": "default", "TTL": 9, "WAIT": 1, "KEY_PREFIX": "p:"}}
    with override_locks():
        assert (locks["default"].settings.ttl, locks["default"].settings.wait) == (9, 1)
        assert locks["default"].key("a") == "p:a"


def test_only_the_named_aliases_are_swapped(settings):
    """One alias can go to memory while another stays."""
    settings.LOCKING = {"default": {"CACHE": "default"}, "other": {"CACHE": "default"}}
    with override_locks("other"):
        assert isinstance(locks["other"], MemoryBackend)
        assert not isinstance(locks["default"], MemoryBackend)


def test_the_configured_backend_is_not_built(settings):
    """It would cost each test more than its locks do, and need the client library of the engine."""
    settings.LOCKING = {"default": {"BACKEND": "nowhere.Backend", "KEY_PREFIX": "shop:"}}
    with override_locks(), get_lock("a") as lease:
        assert lease.key == "shop:a"


def test_an_alias_that_is_not_there_is_a_mistake():
    """It isn't invented."""
    with pytest.raises(InvalidLockBackend, match="no alias 'typo'"), override_locks("typo"):
        pass


def test_the_block_begins_and_ends_empty(settings):
    """Locks from outside aren't seen inside, and those from inside not outside, also in memory."""
    settings.LOCKING = {"default": {"BACKEND": MEMORY}}
    get_lock("outside", ttl=60).acquire().leave_to_expire()
    with override_locks():
        assert not get_lock("outside").locked()
        get_lock("inside", ttl=60).acquire().leave_to_expire()
    assert get_lock("outside").locked()
    assert not get_lock("inside").locked()


@override_locks()
def test_held_locks_are_listed_by_name():
    """All that the process holds, of threads and tasks alike, and nothing that was released."""
    assert held_locks() == []
    with get_lock("b", "a"), get_lock("a"):
        assert held_locks() == ["a", "b"]
        lease = elsewhere(get_lock("c").acquire)
        assert held_locks() == ["a", "b", "c"]
        lease.release()

    async def scenario():
        async with get_lock("d"):
            assert held_locks() == ["d"]

    asyncio.run(scenario())
    assert held_locks() == []


@override_locks()
def test_contention_refuses_the_code_under_test():
    """Inside the block someone else has the lock."""
    with simulate_contention("order:42") as rival, pytest.raises(LockNotAcquired) as caught:
        pay(42)
    assert caught.value.holder == rival
    assert pay(42) == "paid"


@override_locks()
def test_contention_ends_with_its_block():
    """With `waits`, an attempt really waits, and gets the lock when the block ends."""
    with simulate_contention("order:42", waits=True):
        waiter = begin(get_lock("order:42", wait=60).acquire)
        assert held_locks() == []
    waiter.result(timeout=30).release()


@override_locks()
def test_contention_needs_a_free_lock():
    """A lock that is held already isn't taken from its holder."""
    with get_lock("order:42") as lease:
        with pytest.raises(LockNotAcquired), simulate_contention("order:42"):
            pass
        lease.ensure_held()


@pytest.mark.parametrize("by_name", [False, True])
def test_a_loss_is_noticed_by_the_code_under_test(by_name):
    """The lease is lost at once, `on_lost` is called, and another may have it; also on a real server."""
    reported = threading.Event()
    with pytest.raises(LockLost), get_lock("order:42", on_lost=lambda _: reported.set()) as lease:
        simulate_loss("order:42" if by_name else lease)
        elsewhere(lambda: pay(42))
        assert reported.wait(30)
        lease.ensure_held()


@override_locks()
def test_the_loss_of_another_tasks_lock_can_be_simulated_by_name():
    """The name suffices, no matter who in this process holds it."""
    lease = elsewhere(get_lock("order:42").acquire)
    simulate_loss("order:42")
    until(lambda: held_locks() == [], 10)
    with pytest.raises(LockLost):
        lease.ensure_held()


@override_locks()
def test_nothing_can_be_lost_that_is_not_held():
    """A misspelt name is reported, with what is held."""
    with get_lock("order:42"), pytest.raises(LockNotOwned, match=r"'order:43'.*it holds order:42"):
        simulate_loss("order:43")


def test_locking_and_its_tools_do_not_need_pytest():
    """Only the contract imports it; production code imports `locking` without it."""
    program = "import sys, locking, locking.testing; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_other_kinds_are_listed_and_lost_by_name_as_well():
    """A reader and a holder of a permit are held locks like any other."""
    with override_locks(), get_semaphore("gateway", permits=2):
        reading = get_read_lock("catalog").acquire()
        assert held_locks() == ["catalog", "gateway"]
        simulate_loss("catalog")
        with pytest.raises(LockLost):
            reading.ensure_held()


@override_locks()
def test_simulated_contention_does_not_wait():
    """An attempt that would wait is refused at once, in threads and in tasks; other names are free."""
    with simulate_contention("order:42") as holder:
        with pytest.raises(LockNotAcquired) as caught:
            get_lock("order:42", wait=3600).acquire()
        assert (caught.value.holder, caught.value.retry_after) == (holder, 1.0)
        with pytest.raises(LockNotAcquired):
            asyncio.run(get_lock("order:42", wait=3600).aacquire())
        assert get_lock("order:42").locked()
        get_lock("order:43").acquire().release()
    get_lock("order:42").acquire().release()


@override_locks()
def test_contention_on_two_names_at_once():
    """Blocks may be nested; each name is free again after its own."""
    with simulate_contention("a"):
        with simulate_contention("b"), pytest.raises(LockNotAcquired):
            get_lock("a", "b").acquire()
        get_lock("b").acquire().release()
    get_lock("a").acquire().release()


@override_locks()
def test_an_outage_is_reported_at_once():
    """Inside the block no attempt is answered; a lock that is held stays held, and is released."""
    with get_lock("held") as lease:
        with simulate_outage():
            for attempt in (get_lock("a").acquire, lambda: asyncio.run(get_lock("a").aacquire())):
                with pytest.raises(BackendUnavailable, match="simulate_outage"):
                    attempt()
        lease.ensure_held()
    get_lock("a").acquire().release()


def test_what_a_test_leaves_held_is_not_reentered_by_the_next():
    """A lease that is still referred to after its block is over, and the same name is free in the next."""
    with override_locks():
        left = get_lock("a", ttl=60).acquire()
    with override_locks():
        assert held_locks() == []
        assert not get_lock("a").locked()
        with get_lock("a") as lease:
            assert lease is not left


def test_isolated_locks_are_kept_apart_on_one_server():
    """The same name is another lock in each block, on the backend that is configured."""
    before = type(locks["default"])
    with isolate_locks():
        assert type(locks["default"]) is before
        inside = get_lock("a", ttl=60).acquire()
        key = inside.key
    with isolate_locks(), get_lock("a", wait=0) as lease:
        assert lease.key != key
        assert lease.key.endswith(":a")
    assert not get_lock("a").locked()


def test_an_isolated_lock_keeps_its_namespace(monkeypatch):
    """The prefix of the test follows the alias's own, to which a Redis user's rights may be limited."""
    own = classmethod(lambda cls, settings: "shop:lock:")
    monkeypatch.setattr("locking.backends.redis.RedisBackend.default_key_prefix", own)
    with override_settings(LOCKING={"default": {"CACHE": "default"}}), isolate_locks():
        assert locks["default"].key("a").startswith("shop:lock:test-")
    with override_settings(LOCKING={"default": {"CACHE": "default", "KEY_PREFIX": "p:"}}), isolate_locks():
        assert locks["default"].key("a").startswith("p:test-")

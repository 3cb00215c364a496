"""Python and Redisson on the same locks: they exclude, wake, wait for and take over from one another."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from locking import LockLost, get_lock
from locking.core.handler import locks
from tests.backends import any_engine
from tests.locking.backends.redis.redisson.harness import FETCHING, missing
from tests.locking.backends.redis.topologies.servers import until
from tests.locking.backends.redis.topologies.waiters import acquired_in_thread, in_thread, until_waiting

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.timeout(FETCHING),
]

PROMPT = 20.0
"""Seconds within which a wake-up has surely come, on a slow machine, too; the leases here last a minute."""

HOLD = """
import sys, django
from django.conf import settings
settings.configure(LOCKING={"default": {"LOCATION": eval(sys.argv[1]), "KEY_PREFIX": ""}})
django.setup()
from locking import get_lock
lease = get_lock(sys.argv[2], ttl=1).acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_they_exclude_each_other(site):
    """What one side holds the other can't take, and sees as held."""
    with get_lock("shared"):
        assert site.java.do("try", "shared") == "false"
        assert site.java.do("locked", "shared") == "true"
    assert site.java.do("try", "shared") == "true"
    assert get_lock("shared").try_acquire() is None
    assert holder_of("shared").startswith(site.java.id)
    site.java.do("unlock", "shared")
    assert get_lock("shared").try_acquire()


def test_java_wakes_a_python_waiter(site):
    """A Python waiter has the lock soon after Java lets it go, not when Java's lease would have ended."""
    assert site.java.do("try", "shared") == "true"
    waiter = acquired_in_thread("shared")
    site.until_heard("shared")

    site.java.do("unlock", "shared")

    assert waiter.result(PROMPT).remaining() > 50


async def test_java_wakes_a_task(site):
    """A waiting task has the lock soon after Java lets it go."""
    assert await asyncio.to_thread(site.java.do, "try", "shared") == "true"
    waiter = asyncio.create_task(get_lock("shared").aacquire())
    await asyncio.to_thread(site.until_heard, "shared")

    await asyncio.to_thread(site.java.do, "unlock", "shared")

    lease = await asyncio.wait_for(waiter, PROMPT)
    assert lease.remaining() > 50
    await lease.arelease()


def test_python_wakes_a_java_waiter(site):
    """A Java waiter has the lock soon after Python lets it go."""
    held = get_lock("shared").acquire()
    waiter = site.java.begin("main", "wait", "shared")
    site.until_heard("shared")

    held.release()

    assert waiter.result(PROMPT) == "true"
    site.java.do("unlock", "shared")


def test_waiters_of_both_sides_all_get_their_turn(site):
    """Two Python and two Java waiters behind a Python holder all have the lock, one after the other."""
    held = get_lock("shared").acquire()
    pythons = [in_thread(_take_and_let_go, "shared") for _ in range(2)]
    until_waiting(site.home("shared"), "shared", count=2)
    javas = [site.java.begin(f"waiter{i}", "wait", "shared") for i in range(2)]
    site.until_heard("shared")

    held.release()

    first = until(lambda: [i for i in (0, 1) if javas[i].done()], "a Java waiter's turn")[0]
    assert javas[first].result() == "true"
    site.java.do("unlock", "shared", thread=f"waiter{first}")
    assert javas[1 - first].result(PROMPT) == "true"
    site.java.do("unlock", "shared", thread=f"waiter{1 - first}")
    assert [python.result(PROMPT) for python in pythons] == [None, None]


def holder_of(name: str) -> str:
    """Return the owner that has the lock."""
    holder = locks["default"].holder(name)
    assert holder
    return holder.owner


def _take_and_let_go(name: str) -> None:
    with get_lock(name):
        pass


def test_reentrant_holds_of_java_are_waited_out(site):
    """A lock that Java took twice is free for Python when Java has let it go twice."""
    assert site.java.do("try", "shared") == "true"
    assert site.java.do("try", "shared") == "true"
    site.java.do("unlock", "shared")
    assert get_lock("shared").try_acquire() is None
    site.java.do("unlock", "shared")
    assert get_lock("shared").try_acquire()


def test_fencing_tokens_rise_across_both(site):
    """The fencing tokens of one name rise, whichever side mints them."""
    tokens = []
    for _ in range(2):
        with get_lock("fenced", fenced=True) as lease:
            tokens.append(lease.fencing_token)
        tokens.append(int(site.java.do("token", "fenced", kind="fenced")))
        site.java.do("unlock", "fenced", kind="fenced")

    assert tokens == sorted(set(tokens))
    assert len(tokens) == 4


def test_python_takes_over_from_a_killed_java(site):
    """A Python waiter has the lock of a Java process that was killed once its lease has ended."""
    doomed = site.another_java()
    assert doomed.do("try", "shared", 1000) == "true"
    waiter = acquired_in_thread("shared")
    site.until_heard("shared")

    doomed.kill()

    assert waiter.result(1 + PROMPT).remaining() > 50


def test_java_takes_over_from_a_killed_python(site):
    """A Java waiter has the lock of a Python process that was killed once its lease has ended."""
    command = [sys.executable, "-c", HOLD, repr(site.location), "shared"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as doomed:
        assert doomed.stdout is not None
        assert doomed.stdout.readline() == "held\n"
        waiter = site.java.begin("main", "wait", "shared")
        site.until_heard("shared")

        doomed.kill()

        assert waiter.result(1 + PROMPT) == "true"
    site.java.do("unlock", "shared")


def test_a_dead_python_waiter_does_not_hold_up_java(site):
    """A Python waiter that died in the queue is passed over: Java is woken as ever."""
    held = get_lock("shared").acquire()
    command = [sys.executable, "-c", HOLD, repr(site.location), "shared"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as doomed:
        until_waiting(site.home("shared"), "shared")
        doomed.kill()
    waiter = site.java.begin("main", "wait", "shared")
    site.until_heard("shared")

    held.release()

    assert waiter.result(PROMPT) == "true"
    site.java.do("unlock", "shared")


def test_a_dead_python_waiter_does_not_hold_up_python(site):
    """Behind a Java holder, a waiter whose forerunner died in the queue is woken by Java's release."""
    assert site.java.do("try", "shared") == "true"
    command = [sys.executable, "-c", HOLD, repr(site.location), "shared"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as doomed:
        until_waiting(site.home("shared"), "shared")
        waiter = acquired_in_thread("shared")
        until_waiting(site.home("shared"), "shared", count=2)
        doomed.kill()
    subscriptions = 1 if isinstance(site.location, str) else 2
    until(lambda: site.listeners("redisson_lock__channel:{shared}") == subscriptions, "the live waiter alone")

    site.java.do("unlock", "shared")

    assert waiter.result(PROMPT).remaining() > 50


CROWD = """
import sys, threading, django
from django.conf import settings
settings.configure(LOCKING={"default": {"LOCATION": eval(sys.argv[1]), "KEY_PREFIX": ""}})
django.setup()
from locking import get_lock
for _ in range(5):
    threading.Thread(target=get_lock(sys.argv[2], wait=60).acquire, daemon=True).start()
sys.stdin.read()
"""


def test_five_dead_python_waiters_do_not_hold_up_python(site):
    """A process killed with all its waiting threads leaves the waiter behind them woken by Java's release."""
    assert site.java.do("try", "shared") == "true"
    command = [sys.executable, "-c", CROWD, repr(site.location), "shared"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as doomed:
        until_waiting(site.home("shared"), "shared", count=5)
        waiter = acquired_in_thread("shared")
        until_waiting(site.home("shared"), "shared", count=6)
        doomed.kill()
    subscriptions = 1 if isinstance(site.location, str) else 2
    until(lambda: site.listeners("redisson_lock__channel:{shared}") == subscriptions, "the live waiter alone")

    site.java.do("unlock", "shared")

    assert waiter.result(PROMPT).remaining() > 50


def test_java_forces_python_out(site):
    """After Java's forceUnlock the Python holder learns that it lost the lock; a waiter has it."""
    held = get_lock("shared").acquire()
    waiter = acquired_in_thread("shared")
    until_waiting(site.home("shared"), "shared")

    assert site.java.do("force", "shared") == "true"
    pushed = in_thread(_take_and_let_go, "shared")  # a forced release is announced on Redisson's channel only

    with pytest.raises(LockLost):
        held.release()
    waiter.result(PROMPT).release()
    pushed.result(PROMPT)


def test_python_forces_java_out(site):
    """`force_release` of a Java holder wakes a Java waiter, and the old holder's unlock is refused."""
    assert site.java.do("try", "shared") == "true"
    waiter = site.java.begin("other", "wait", "shared")
    site.until_heard("shared")
    backend = any_engine()

    assert not backend.force_release("shared", "another:1")
    assert backend.force_release("shared", holder_of("shared"))

    assert waiter.result(PROMPT) == "true"
    assert "IllegalMonitorStateException" in site.java.do("unlock", "shared")
    site.java.do("unlock", "shared", thread="other")


def test_python_leaves_nothing_behind_that_java_minds(site):
    """After both sides are done only the index is left, and Redisson's own latches."""
    for _ in range(2):
        _take_and_let_go("shared")
        assert site.java.do("try", "shared") == "true"
        site.java.do("unlock", "shared")

    left = [name for node in site.nodes for name in site.names_on(node)]
    own = [name for name in left if "redisson_unlock_latch" not in name]
    assert [name for name in own if not name.startswith("holdfast_held:")] == []


def test_a_java_holder_is_listed_and_can_be_broken(site):
    """Once a Python process was refused its lock, Java's hold is listed; an operator breaks it."""
    assert site.java.do("try", "shared") == "true"
    assert get_lock("shared").try_acquire() is None
    (hold,) = any_engine().held(prefix="shared")
    assert hold.owner.startswith(site.java.id)
    assert (hold.kind, hold.token) == ("lock", 0)
    assert hold.since is not None
    assert any_engine().force_release("shared", hold.owner)
    assert any_engine().held(prefix="shared") == []
    assert get_lock("shared").try_acquire()


def test_a_java_holder_that_no_client_met_is_found(site):
    """A lock that only Java uses is listed when a listing passes its key, until Java lets it go."""
    assert site.java.do("try", "alone") == "true"
    until(lambda: [hold.key for hold in any_engine().held()] == ["alone"], "the Java holder on the list")
    site.java.do("unlock", "alone")
    assert any_engine().held() == []

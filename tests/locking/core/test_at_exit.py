"""The end of a process releases what its finished threads and tasks held, and nothing else."""

import asyncio
import gc
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock
from uuid import uuid4

import pytest

from locking import BackendUnavailable, get_lock
from locking.core import lease as lease_module
from locking.core.handler import locks
from locking.core.lease import DROPPED
from locking.testing import held_locks
from locking.testing.contract.base import begin
from tests.support.warm import WarmProcess

BEGINNING = """
import asyncio, sys, threading, time
from locking import exit_on_sigterm, get_lock
name = sys.argv[1]
def held():
    print("held", flush=True)
"""
FORGOTTEN = """
lease = get_lock(name, ttl=300).acquire()
again = get_lock(name, ttl=300).acquire()
held()
sys.stdin.readline()
"""
IN_A_BLOCK = """
assert exit_on_sigterm()
with get_lock(name, ttl=300):
    held()
    for _ in range(1200):
        time.sleep(0.05)  # a signal that comes right before a sleep is seen behind it
"""
IN_A_DAEMON = """
said = threading.Event()
def work():
    lease = get_lock(name, ttl=300).acquire()
    held()
    said.set()
    time.sleep(60)  # lives until it is ended
threading.Thread(target=work, daemon=True).start()
said.wait()  # an interpreter that ends while a thread prints is aborted
sys.stdin.readline()
"""


@contextmanager
def process(script: str, name: str) -> Iterator[WarmProcess]:
    """A process that has the lock `name` when the block is entered."""
    command = ["-c", BEGINNING + script, name]
    with WarmProcess(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout.readline() == "held\n"
        yield running
        running.kill()


@pytest.fixture
def name(redis_database: Any) -> str:
    return f"exit:{uuid4()}"


def owner_of(name: str) -> Any:
    return locks["default"].holder(locks["default"].key(name))


def test_a_lease_that_no_client_released_is_handed_over_at_the_end(name: str) -> None:
    """A shell that is left, a script that forgot: the next waiter has the lock, not after 300 seconds."""
    with process(FORGOTTEN, name) as running:
        waiter = begin(get_lock(name, wait=60).acquire)
        running.communicate("\n", timeout=30)
        assert running.returncode == 0
        waiter.result(timeout=30).release()


def test_sigterm_leaves_the_blocks_and_so_releases(name: str) -> None:
    """With `exit_on_sigterm`; the exit status is the shell's for that signal."""
    with process(IN_A_BLOCK, name) as running:
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 128 + signal.SIGTERM
        assert owner_of(name) is None


def test_what_a_daemon_thread_holds_stays(name: str) -> None:
    """It was at work until the very end: a COMMIT of its may still be running."""
    with process(IN_A_DAEMON, name) as running:
        running.communicate("\n", timeout=30)
        assert running.returncode == 0
        assert owner_of(name) is not None


@pytest.fixture
def none_dropped() -> None:
    """Leases that other tests have dropped are no matter here."""
    DROPPED.clear()


def test_a_backend_that_is_down_is_asked_once(
    memory_locks: None, none_dropped: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a process waits for one time-out, not for one per lock; the log names the others."""
    asked: list[str] = []

    def silent(key: str, owner: str) -> bool:
        asked.append(key)
        raise BackendUnavailable("no answer")

    leases = [get_lock(name, guarded=True).acquire() for name in "ab"]
    with monkeypatch.context() as patch:
        patch.setattr(locks["default"], "release", silent)
        lease_module.release_what_is_left()
    assert len(asked) == 1
    for lease in leases:
        locks["default"].release(lease.key, lease.owner)


def test_a_renewed_lease_that_was_dropped_is_released_at_the_end(
    memory_locks: None, none_dropped: None
) -> None:
    """Until then it stays locked, as does one with a ttl or a min_hold of its own, which says how long."""
    for name, options in {"renewed": {}, "bounded": {"ttl": 60}, "paced": {"min_hold": 60}}.items():
        get_lock(name, **options).acquire()  # type: ignore[arg-type]
    gc.collect()
    assert get_lock("renewed").locked()
    lease_module.release_what_is_left()
    assert [get_lock(name).locked() for name in ("renewed", "bounded", "paced")] == [False, True, True]


def test_dropped_leases_of_a_backend_that_is_down_are_asked_for_once(
    memory_locks: None, none_dropped: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a process waits for one time-out, not for one per lease."""
    release = mock.Mock(side_effect=BackendUnavailable("no answer"))
    for name in ("a", "b"):
        get_lock(name).acquire()
    gc.collect()
    monkeypatch.setattr(locks["default"], "release", release)
    lease_module.release_what_is_left()
    assert release.call_count == 1


def test_a_thread_that_has_ended_holds_nothing_afterwards(memory_locks: None, none_dropped: None) -> None:
    """Its lease was left in some other object, and renewed for it."""
    kept: list[Any] = []
    thread = threading.Thread(target=lambda: kept.append(get_lock("a").acquire()))
    thread.start()
    thread.join()
    kept.append(thread)
    lease_module.release_what_is_left()
    assert held_locks() == []


def test_a_task_whose_loop_has_closed_is_finished(memory_locks: None, none_dropped: None) -> None:
    """A task that runs is not."""
    kept: list[Any] = []

    async def work() -> None:
        kept.extend((await get_lock("a").aacquire(), asyncio.current_task()))
        lease_module.release_what_is_left()
        assert held_locks() == ["a"]

    asyncio.run(work())
    lease_module.release_what_is_left()
    assert held_locks() == []


def test_a_handler_of_the_projects_own_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A web server knows better what SIGTERM means."""
    monkeypatch.setattr(signal, "getsignal", lambda number: print)
    assert not lease_module.exit_on_sigterm()

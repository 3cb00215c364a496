"""The decorator with other kinds of lock."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from locking import (
    LockNotAcquired,
    LockTransactionError,
    StaleFencingToken,
    current_lease,
    distributed_lock,
    get_read_lock,
)
from locking.core.kinds import ReadLock
from tests.locking.support.helpers import elsewhere

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("memory_locks")]


def test_readers_run_at_the_same_time() -> None:
    """Two calls of a function with a read lock are both inside at once, and none may write meanwhile."""
    both_inside = threading.Barrier(3, timeout=20)
    may_leave = threading.Event()

    @distributed_lock(key="'catalog'", kind="read", atomic=False)
    def read() -> None:
        both_inside.wait()
        may_leave.wait(20)

    @distributed_lock(key="'catalog'", kind="write", wait=0)
    def write() -> str:
        return "written"

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        both_inside.wait()
        with pytest.raises(LockNotAcquired):
            write()
        may_leave.set()
        for reader in readers:
            reader.result()
    assert write() == "written"


def test_a_semaphore_admits_as_many_as_it_has_permits() -> None:
    """The third of three calls is refused."""

    @distributed_lock(key="'gateway'", kind="semaphore", permits=2, wait=0, atomic=False)
    def send(more: int) -> int:
        return 1 + (send(more - 1) if more else 0)

    assert send(1) == 2
    with pytest.raises(LockNotAcquired):
        send(2)


def test_a_reader_inside_a_writers_transaction_is_covered_by_it() -> None:
    """The read lock of the same name is a re-entry, whose end is the writer's COMMIT."""

    @distributed_lock(key="'catalog'", kind="read")
    def read() -> str:
        return current_lease().name

    @distributed_lock(key="'catalog'", kind="write")
    def write() -> str:
        return read()

    assert write() == "catalog"


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ({"kind": "read"}, {"kind": "write"}),
        ({}, {"kind": "read"}),
        ({"kind": "semaphore", "permits": 2}, {"kind": "semaphore", "permits": 2}),
    ],
    ids=["write in read", "read in lock", "permit in permit"],
)
def test_another_kind_inside_a_locked_transaction_is_not_taken_for_held(outer: Any, inner: Any) -> None:
    """The inner lock would be released before the outer COMMIT, so it is refused."""

    @distributed_lock(key="'a'", **inner)
    def called() -> None:
        raise AssertionError("ran without its lock")

    @distributed_lock(key="'a'", **outer)
    def caller() -> None:
        called()

    with pytest.raises(LockTransactionError):
        caller()


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"kind": "reed"}, "kind='reed' must be one of 'lock', 'read'"),
        ({"permits": 2}, "permits=2 cannot be combined with kind='lock'"),
        ({"kind": "semaphore"}, "permits must be a whole number from 1"),
        ({"kind": "semaphore", "permits": 2, "fenced": True}, "fenced=True cannot be combined"),
        ({"kind": "read", "fenced": True}, "fenced=True cannot be combined with kind='read'"),
    ],
)
def test_options_that_cannot_be_are_refused_at_decoration(options: Any, reported: str) -> None:
    """The message names the option, its value and what to write."""
    with pytest.raises(ValueError, match=reported):
        distributed_lock(key="'a'", **options)


def test_mutant_a_fence_for_readers_refuses_all_but_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers hold the lock side by side; the fence would call every one overtaken by the next."""
    monkeypatch.setattr("locking.core.kinds.HELD_BY_SEVERAL", ())

    @distributed_lock(key="'catalog'", kind="read", fenced=True)
    def read() -> str:
        return "read"

    lease = get_read_lock("catalog").acquire()
    assert elsewhere(read) == "read"
    lease.ensure_held()
    with pytest.raises(StaleFencingToken, match="overtaken"):
        read()


def test_a_read_lock_with_a_fence_is_refused() -> None:
    """The message says why."""
    with pytest.raises(ValueError, match="several holders"):
        get_read_lock("catalog", fenced=True)


async def test_an_async_function_takes_another_kind() -> None:
    """The lock of the call is a read lock."""

    @distributed_lock(key="'catalog'", kind="read")
    async def read() -> bool:
        return isinstance(get_read_lock("catalog"), ReadLock) and await get_read_lock("catalog").alocked()

    assert await read()

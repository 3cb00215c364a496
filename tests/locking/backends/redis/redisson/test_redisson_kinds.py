"""Python and Redisson on the same read-write locks, fair locks and semaphores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from locking import Lock, get_read_lock, get_semaphore, get_write_lock
from locking.contrib.redisson import get_fair_lock
from locking.inspection.held import held_locks
from tests.backends import any_engine
from tests.locking.backends.redis.redisson.harness import FETCHING, missing
from tests.locking.backends.redis.redisson.sites import CallSite
from tests.locking.backends.redis.topologies.servers import Server, until
from tests.locking.backends.redis.topologies.waiters import in_thread

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.timeout(FETCHING),
]

PROMPT = 20.0
"""Seconds within which a wake-up has surely come; the leases here last a minute."""

GETTERS: dict[str, Callable[..., Lock]] = {
    "read": get_read_lock,
    "write": get_write_lock,
    "fair": get_fair_lock,
    "semaphore": partial(get_semaphore, permits=1),
}
EXCLUDING = [
    ("write", "write"), ("write", "read"), ("read", "write"), ("fair", "fair"), ("semaphore", "semaphore"),
]  # fmt: skip
CHANNELS = {
    "read": "redisson_rwlock:{shared}",
    "write": "redisson_rwlock:{shared}",
    "semaphore": "redisson_sc:{shared}",
}

excluding = pytest.mark.parametrize(("held", "wanted"), EXCLUDING, ids="-".join)


def until_someone_waits(site: CallSite, kind: str) -> None:
    """Return once a waiter will be woken: it listens, or stands in the fair queue."""
    if kind == "fair":
        until_in_line(site, 1)
    else:
        until(lambda: site.listeners(CHANNELS[kind]), f"a listener to {CHANNELS[kind]}")


def until_in_line(site: CallSite, number: int) -> None:
    """Return once so many stand in the fair queue."""
    queue = "redisson_lock_queue:{shared}"
    until(lambda: sum(length_on(node, queue) for node in site.nodes) == number, f"{number} in the queue")


def length_on(node: Server, queue: str) -> int:
    """How long a list is, if it is on this node."""
    with node.client() as client:
        return len(client.lrange(queue, 0, -1)) if queue.encode() in client.keys("*") else 0


@excluding
def test_what_python_holds_java_cannot_take(site, held, wanted):
    """A Java client is refused while Python holds, and gets it afterwards."""
    with GETTERS[held]("shared"):
        assert site.java.do("try", "shared", kind=wanted) == "false"
    assert site.java.do("try", "shared", kind=wanted) == "true"
    assert site.java.do("unlock", "shared", kind=wanted) == "done"


@excluding
def test_what_java_holds_python_cannot_take(site, held, wanted):
    """Python is refused while a Java client holds, and gets it afterwards."""
    _taken_by_java(site, held)
    assert GETTERS[wanted]("shared").try_acquire() is None
    assert site.java.do("unlock", "shared", kind=held) == "done"
    with GETTERS[wanted]("shared", wait=0):
        pass


@excluding
def test_python_wakes_a_waiting_java(site, held, wanted):
    """Java has it soon after Python lets go."""
    lease = GETTERS[held]("shared").acquire()
    waiter = site.java.begin("main", "wait", "shared", kind=wanted)
    until_someone_waits(site, wanted)

    lease.release()

    assert waiter.result(PROMPT) == "true"
    assert site.java.do("unlock", "shared", kind=wanted) == "done"


@excluding
def test_java_wakes_a_waiting_python(site, held, wanted):
    """A Python thread has it soon after Java lets go."""
    _taken_by_java(site, held)
    waiter = in_thread(lambda: GETTERS[wanted]("shared").acquire())
    until_someone_waits(site, wanted)

    assert site.java.do("unlock", "shared", kind=held) == "done"

    waiter.result(PROMPT).release()


@excluding
async def test_java_wakes_a_waiting_task(site, held, wanted):
    """A Python task has it soon after Java lets go."""
    await asyncio.to_thread(_taken_by_java, site, held)
    task = asyncio.create_task(GETTERS[wanted]("shared").aacquire())
    await asyncio.to_thread(until_someone_waits, site, wanted)

    await asyncio.to_thread(site.java.do, "unlock", "shared", kind=held)

    await (await asyncio.wait_for(task, PROMPT)).arelease()


def test_readers_of_both_sides_read_together(site):
    """A writer of either side waits for the readers of both."""
    assert site.java.do("try", "shared", kind="read") == "true"
    reading = get_read_lock("shared").acquire()
    assert site.java.do("try", "shared", kind="write", thread="other") == "false"
    assert site.java.do("unlock", "shared", kind="read") == "done"
    assert site.java.do("try", "shared", kind="write", thread="other") == "false"
    reading.release()
    assert site.java.do("try", "shared", kind="write", thread="other") == "true"
    assert site.java.do("unlock", "shared", kind="write", thread="other") == "done"


def test_a_java_writer_that_goes_on_reading_lets_python_read(site):
    """When Java steps down from writing to reading, Python may read and may not write."""
    assert site.java.do("try", "shared", kind="write") == "true"
    assert site.java.do("try", "shared", kind="read") == "true"
    assert get_read_lock("shared").try_acquire() is None
    assert site.java.do("unlock", "shared", kind="write") == "done"
    with get_read_lock("shared", wait=PROMPT):
        assert in_thread(get_write_lock("shared").try_acquire).result(PROMPT) is None
    assert site.java.do("unlock", "shared", kind="read") == "done"
    with get_write_lock("shared", wait=PROMPT):
        pass


def test_both_sides_draw_from_the_same_permits(site):
    """Three permits, however they are divided; Python has said so first, and Java finds it said."""
    mine = get_semaphore("shared", 3).acquire()
    assert site.java.do("permits", "shared", 7, kind="semaphore") == "false"
    for thread in ("main", "other"):
        assert site.java.do("try", "shared", kind="semaphore", thread=thread) == "true"
    assert get_semaphore("shared", 3).try_acquire() is None
    assert site.java.do("left", "shared", kind="semaphore") == "0"
    mine.release()
    assert site.java.do("left", "shared", kind="semaphore") == "1"
    holder = any_engine().variant("semaphore", permits=3).holder("shared")
    assert holder is not None
    assert holder.count == 2
    for _ in range(2):
        assert site.java.do("unlock", "shared", kind="semaphore") == "done"
    assert site.java.do("left", "shared", kind="semaphore") == "3"


def test_java_s_permits_are_listed_and_can_be_broken(site):
    """The list finds the permit that a Java client took, and an operator gives it back."""
    _taken_by_java(site, "semaphore")
    until(lambda: [row.kind for row in held_locks().rows] == ["semaphore"], "the permit on the list")
    (row,) = held_locks().rows
    assert row.name == "shared"
    assert any_engine().variant("semaphore", permits=1).force_release(row.key, row.owner)
    with get_semaphore("shared", 1, wait=0):
        pass


def test_the_fair_queue_is_served_in_order_across_both(site):
    """Python, Java, Python wait in that order and are served in it."""
    turns: list[str] = []
    held = get_fair_lock("shared").acquire()

    def wait(name: str) -> None:
        with get_fair_lock("shared"):
            turns.append(name)

    first = in_thread(wait, "python 1")
    until_in_line(site, 1)
    java = site.java.begin("main", "wait", "shared", kind="fair")
    until_in_line(site, 2)
    last = in_thread(wait, "python 2")
    until_in_line(site, 3)

    held.release()

    first.result(PROMPT)
    assert java.result(PROMPT) == "true"
    turns.append("java")
    assert not last.done()
    assert site.java.do("unlock", "shared", kind="fair") == "done"
    last.result(PROMPT)
    assert turns == ["python 1", "java", "python 2"]


def _taken_by_java(site: CallSite, kind: str) -> None:
    if kind == "semaphore":
        site.java.do("permits", "shared", 1, kind="semaphore")
    assert site.java.do("try", "shared", kind=kind) == "true"

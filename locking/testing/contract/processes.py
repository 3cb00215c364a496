"""Other processes: excluded, killed, forked."""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from locking.backends.base import BaseLockBackend
from locking.core.lease import Lease
from locking.core.lock import Lock, get_lock
from locking.exceptions import LockNotOwned
from locking.liveness.release import watcher
from locking.testing.contract.base import ContractBase
from locking.utils.clock import now

FORK = multiprocessing.get_context("fork")


class Child:
    """A forked process and the pipe by which it reports."""

    def __init__(self, process: ForkProcess, pipe: Connection) -> None:
        self.process, self.pipe = process, pipe

    def report(self, within: float = 30.0) -> Any:
        """Return what the child sent next."""
        assert self.pipe.poll(within), f"the child said nothing for {within:g} s"
        return self.pipe.recv()

    def kill(self) -> None:
        """End it as the kernel would, without a chance to clean up."""
        self.process.kill()
        self.process.join()


@contextmanager
def child(work: Callable[[Connection], None]) -> Iterator[Child]:
    """Run `work` in a forked process, which is killed at the end of the block if it still runs."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=_child, args=(work, theirs), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # Python 3.12 warns of threads; ours survive a fork
        process.start()
    theirs.close()
    try:
        yield Child(process, ours)
    finally:
        process.kill()
        process.join()
        ours.close()


def _child(work: Callable[[Connection], None], pipe: Connection) -> None:
    for connection in connections.all(initialized_only=True):
        connection.connection = None  # the parent's: closing it here would close it there
    work(pipe)


class ProcessContract(ContractBase):
    """One name, several processes."""

    @pytest.fixture(autouse=True)
    def leases_decide(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Leave dead processes to the engine: what is tried here is its lease."""
        monkeypatch.setattr(watcher, "enabled", False)

    def test_a_lock_held_by_a_child_excludes_its_parent(self, backend: BaseLockBackend, name: str) -> None:
        """Processes exclude each other where `shared_between_processes` is on, and don't where it is off."""

        def work(pipe: Connection) -> None:
            lock = get_lock(name, ttl=60)
            lock.acquire()
            pipe.send("held")
            pipe.recv()
            lock.release()
            pipe.send("released")

        with child(work) as holder:
            assert holder.report() == "held"
            mine = get_lock(name, ttl=30).try_acquire()
            assert (mine is None) == backend.shared_between_processes
            holder.pipe.send("go on")
            assert holder.report() == "released"
            if mine is None:
                mine = get_lock(name, ttl=30).acquire(wait=0)
            mine.release()

    def test_a_killed_childs_lock_is_free_after_its_lease(self, backend: BaseLockBackend, name: str) -> None:
        """After `kill -9` of the holder the lock stays taken to the end of the lease, and no longer; where
        `frees_with_holder` is on, it is free long before.
        """
        ttl = 3600.0 if backend.frees_with_holder else self.shortest_ttl

        def work(pipe: Connection) -> None:
            (single,) = get_lock(name, ttl=ttl).acquire().leases
            pipe.send(single.taken_at)
            pipe.recv()

        with child(work) as holder:
            taken_at = holder.report()
            holder.kill()
        lease = get_lock(name, ttl=30, wait=self.patience).acquire()
        if backend.shared_between_processes and not backend.frees_with_holder:
            assert now() - taken_at >= ttl * 0.98
        lease.release()

    def test_a_killed_waiter_is_passed_over(self, backend: BaseLockBackend, name: str) -> None:
        """The lock isn't left with a process that was killed while it waited for it."""
        if not backend.shared_between_processes:
            pytest.skip("no other process can wait for this backend's locks")

        def work(pipe: Connection) -> None:
            from locking.core.handler import locks

            place = locks["default"].waiter(
                locks["default"].key(name), "00000000-0000-8000-a000-000000000000:1", self.shortest_ttl
            )
            place.try_acquire(queue=True)
            pipe.send("waits in the queue")
            place.wait(60.0)

        with get_lock(name, ttl=60), child(work) as waiter:
            waiter.report()
            waiter.kill()
        get_lock(name, ttl=30, wait=self.patience * 2).acquire().release()

    def test_a_forked_child_does_not_hold_its_parents_lock(self, backend: BaseLockBackend, name: str) -> None:
        """A fork in a held block inherits neither the re-entry nor the right to release."""
        lock = get_lock(name, ttl=60)

        def work(pipe: Connection) -> None:
            pipe.send(_refusals(lock, lease))

        with lock as lease:
            with child(work) as forked:
                refused, entered = forked.report()
            assert refused == ["release", "ensure_held", "lease.release"]
            assert entered != backend.shared_between_processes
            lease.ensure_held()
            assert lock.locked()
        assert not lock.locked()

    def test_leaving_the_block_in_a_fork_leaves_the_lock_with_the_parent(
        self, backend: BaseLockBackend, name: str
    ) -> None:
        """A child that runs to the end of its parent's block doesn't release the lock there, nor fail."""
        ours, theirs = FORK.Pipe()
        with warnings.catch_warnings(), get_lock(name, ttl=60) as lease:
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
            if pid == 0:
                _leave_block_and_exit(lease.leases[0], theirs)
            os.waitpid(pid, 0)
            assert ours.recv() == "left"
            lease.ensure_held()
            holder = backend.holder(backend.key(name))
            assert holder is not None
            assert holder.owner == lease.leases[0].owner

    def test_hammer_of_processes(self, backend: BaseLockBackend, name: str, tmp_path: Path) -> None:
        """Processes that read a counter, sleep, and write it back under the lock lose no count."""
        if not backend.shared_between_processes:
            pytest.skip("this backend's locks live in one process")
        counter = tmp_path / "counter"
        counter.write_text("0")

        def work(pipe: Connection) -> None:
            for _ in range(20):
                with get_lock(name, ttl=60, wait=60):
                    seen = int(counter.read_text())
                    time.sleep(0.0005)  # between reading and writing: room for an intruder
                    counter.write_text(str(seen + 1))
            pipe.send("done")

        with child(work) as one, child(work) as two, child(work) as three, child(work) as four:
            for worker in (one, two, three, four):
                assert worker.report(60) == "done"
        assert counter.read_text() == "80"

    def test_tokens_rise_across_processes(self, backend: BaseLockBackend, name: str) -> None:
        """Where fencing is supported, the token of a later hold is higher, whichever process has it."""
        if not (backend.supports_fencing and backend.shared_between_processes):
            pytest.skip("no fencing tokens between processes")

        def work(pipe: Connection) -> None:
            while pipe.recv() == "take":
                with get_lock(name, ttl=60, wait=30, fenced=True) as lease:
                    pipe.send(lease.fencing_token)

        tokens = []
        with child(work) as one, child(work) as two:
            for worker in (one, two, one, two, two, one):
                worker.pipe.send("take")
                tokens.append(worker.report())
                with get_lock(name, ttl=60, wait=30, fenced=True) as lease:
                    tokens.append(lease.fencing_token)
        assert tokens == sorted(set(tokens))


def _refusals(lock: Lock, lease: Lease) -> tuple[list[str], bool]:
    """What a forked child may not do with its parent's lock, and whether it got a hold of its own."""
    refused = []
    for name, step in {
        "release": lock.release,
        "ensure_held": lease.ensure_held,
        "lease.release": lease.release,
    }.items():
        try:
            step()
        except LockNotOwned:
            refused.append(name)
    return refused, get_lock(lock.name, ttl=1).try_acquire() is not None


def _leave_block_and_exit(lease: Any, pipe: Connection) -> None:
    """Leave the block as its end would, then end the process without running the parent's clean-up."""
    try:
        lease._give_back(None)
        pipe.send("left")
    except BaseException as error:
        pipe.send(repr(error))
    finally:
        os._exit(0)

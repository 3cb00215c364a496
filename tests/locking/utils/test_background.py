"""Background threads: a start that fails, a wake-up that comes late, a fork, a system without fork."""

import gc
import math
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from django.db import connection

import locking
from locking import get_lock
from locking.core.renewal import Watchdogs
from locking.testing.contract.base import until
from locking.testing.contract.processes import child
from locking.utils.background import Worker, after_fork, start_thread
from locking.utils.clock import now

PATIENCE = 30.0


@pytest.fixture
def no_threads(monkeypatch):
    """No thread can start until the returned event is set."""
    allowed, start = threading.Event(), threading.Thread.start

    def refused(thread):
        if not allowed.is_set() and thread.name.startswith("locking-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    return allowed


@pytest.fixture
def calls():
    """A worker whose step counts its calls, and the list of them."""
    made: list[float] = []

    def step():
        made.append(now())
        return math.inf

    worker = Worker("locking-test", step)
    yield worker, made
    worker.stop()


@pytest.fixture
def opened(transactional_db):
    """A step that opens a database connection, and the list of those."""
    made = []

    def step():
        connection.ensure_connection()
        made.append(connection.connection)
        return math.inf

    return step, made


def test_a_worker_that_is_stopped_leaves_no_database_connection(opened):
    """What its step has opened is closed with its thread; a session was kept until a collection."""
    step, made = opened
    worker = Worker("locking-test", step)
    worker.wake()
    until(lambda: made, PATIENCE)
    worker.stop()
    until(lambda: made[0].closed, PATIENCE)


def test_a_single_run_leaves_no_database_connection(opened):
    """The same with a thread that ends by itself, such as that of an `on_lost` that writes a row."""
    step, made = opened
    assert start_thread("locking-test", step)
    until(lambda: made and made[0].closed, PATIENCE)


def test_a_worker_that_could_not_start_starts_at_its_next_use(calls, no_threads, caplog):
    """A failed start is logged, is not taken for a running thread, and is retried by the next wake-up."""
    worker, made = calls
    assert not worker.wake()
    assert worker.thread is None
    assert "cannot start: can't start new thread" in caplog.text
    no_threads.set()
    assert worker.wake()
    until(lambda: made, PATIENCE)


@pytest.mark.usefixtures("memory_locks")
def test_a_lease_taken_while_no_thread_could_start_is_renewed_later(no_threads, monkeypatch):
    """The watchdog that could not start renews every lease as soon as another lock is taken."""
    monkeypatch.setattr("locking.core.lock.watchdogs", watchdogs := Watchdogs())
    monkeypatch.setattr("locking.core.lease.RENEW_AFTER", 0.1 / 30)
    lease = get_lock("a").acquire().leases[0]
    no_threads.set()
    with get_lock("b"):
        until(lambda: lease.renewals, PATIENCE)
    lease.release()
    watchdogs._workers["default"].stop()  # it would sleep for an hour, among the watchdogs that others count


@pytest.mark.usefixtures("memory_locks")
def test_a_loss_is_reported_although_no_thread_can_start(no_threads):
    """Without a thread for it, `on_lost` runs where the loss was found."""
    reported: list[object] = []
    lease = get_lock("a", ttl=60, on_lost=reported.append).acquire()
    lease.leases[0].lose()
    assert reported == [lease]


def test_a_wake_up_during_the_step_is_not_lost():
    """A wake-up that comes after the step has looked, and before the thread sleeps, calls the step again."""
    looked, go_on, calls = threading.Event(), threading.Event(), []

    def step():
        calls.append(1)
        looked.set()
        assert go_on.wait(PATIENCE)

    worker = Worker("locking-test", step)
    worker.wake()
    assert looked.wait(PATIENCE)
    worker.wake_by(now() + 0.01)
    go_on.set()
    until(lambda: len(calls) == 2, PATIENCE)
    until(lambda: worker.thread is None, PATIENCE)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_whatever_a_step_raises_disables_no_worker(error, monkeypatch):
    """After an exception the step is called again; a thread that was ended starts again when it is woken."""
    monkeypatch.setattr("locking.utils.background.RETRY_PAUSE", 0.01)
    calls: list[int] = []
    threads: set[threading.Thread] = set()

    def step():
        threads.add(threading.current_thread())
        calls.append(1)
        if len(calls) == 1:
            raise error

    worker = Worker("locking-test", step)
    worker.wake()
    until(lambda: worker.thread is None or len(calls) > 1, PATIENCE)
    worker.wake()
    until(lambda: len(calls) > 1, PATIENCE)
    for thread in list(threads):  # what one raises at its end is this test's, not the next one's
        thread.join(PATIENCE)


def test_a_stopped_worker_starts_again(calls):
    """`stop` ends the thread after its step, and the next wake-up starts another."""
    worker, made = calls
    worker.wake()
    until(lambda: made, PATIENCE)
    worker.stop()
    assert worker.thread is None
    worker.wake()
    until(lambda: len(made) == 2, PATIENCE)


def test_a_forked_child_has_a_worker_of_its_own(calls):
    """A child's worker is not running, and starts when the child wakes it."""
    worker, made = calls
    worker.wake()
    until(lambda: made, PATIENCE)

    def work(pipe):
        pipe.send(worker.thread is not None)
        worker.wake()
        until(lambda: len(made) == 2, PATIENCE)
        pipe.send(worker.thread is not None)

    with child(work) as forked:
        assert [forked.report(), forked.report()] == [False, True]


class Resettable:
    """Notes its resets; the first of two fails."""

    def __init__(self, resets, fails):
        self.resets, self.fails = resets, fails
        after_fork(self.reset)

    def reset(self):
        """Note it, or fail."""
        if self.fails:
            raise ValueError("a reset that fails")
        self.resets.append(1)


def test_a_fork_resets_every_object_that_is_left():
    """A reset that fails keeps none from running, and an object that is gone is not kept for its reset."""
    resets: list[int] = []
    bad, good, gone = (Resettable(resets, fails) for fails in (True, False, False))
    del gone
    gc.collect()

    def work(pipe):
        pipe.send(len(resets))

    with child(work) as forked:
        assert forked.report() == 1
    assert (bad.resets, good.resets) == ([], [])


def test_a_thread_that_runs_once_reports_a_failed_start(no_threads):
    """The caller learns that nothing will run, and does without."""
    assert not start_thread("locking-test", lambda: None)


WITHOUT_FORK = """
import os
import django
from django.conf import settings
settings.configure(LOCKING={"default": {"BACKEND": "locking.backends.memory.MemoryBackend"}})
django.setup()
import concurrent.futures.thread
del os.register_at_fork
from locking import get_lock
with get_lock("a"):
    print("held")
"""


def test_locks_work_on_a_system_without_fork():
    """Where `os.register_at_fork` is missing, as on Windows, the package is imported and locks."""
    answer = subprocess.run([sys.executable, "-c", WITHOUT_FORK], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "held"


def test_one_module_starts_threads_and_hears_of_forks():
    """No other module of the package starts a thread or registers a fork hook: there is one mechanism."""
    package = Path(locking.__file__).parent
    own = re.compile(r"threading\.Thread\(|register_at_fork\(")
    users = {
        path.relative_to(package).as_posix() for path in package.rglob("*.py") if own.search(path.read_text())
    }
    assert users == {"utils/background.py", "testing/contract/base.py"}


KINDS = ("locking-renew", "locking-listen", "locking-tidy", "locking-call")


def test_there_are_four_kinds_of_thread():
    """The name of each thread in the package begins with its kind, and the page on threads lists the four."""
    package = Path(locking.__file__).parent
    started = re.compile(r"(?:Worker|start_thread)\(\s*f?\"([\w-]+)")
    names = {name for path in package.rglob("*.py") for name in started.findall(path.read_text())}
    assert {name.rstrip("-") for name in names if not name.startswith(KINDS)} == set()
    assert {kind for kind in KINDS if any(name.startswith(kind) for name in names)} == set(KINDS)
    page = (package.parent / "docs/contributing/threads.md").read_text()
    assert tuple(re.findall(r"^\| `(locking-\w+)` \|", page, re.MULTILINE)) == KINDS


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the names of threads")
def test_the_system_shows_the_name_of_a_thread():
    """`ps` and `top` show which thread is at work."""
    seen: list[str] = []

    def read():
        seen.append(Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text().strip())

    thread = start_thread("locking-call-a-long-name", read)
    assert thread is not None
    thread.join(PATIENCE)
    assert seen == ["locking-call-a-"]

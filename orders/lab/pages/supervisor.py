"""In the web server: a run has a process of its own, under the project's own lock, and leaves no orphan.

A thread holds the lock for as long as the process runs, so one race runs at a time, on
however many machines, and the lock is seen among the held ones. The process reads from a pipe of this one: if
the server is killed, the pipe ends, and so does the run.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import OperationalError, connection, transaction
from django.db.models.functions import Now

from locking import Lease, Lock, LockLost, LockNotAcquired, get_lock, get_semaphore
from orders.lab.models import LabEvent, LabRun, forget_old_runs
from orders.lab.pages.limits import STEP_SESSIONS

RACE_LOCK = "lab:race"
STEPS_LOCK = "lab:steps"
LOOK_EVERY = 0.25
LEAVE_WITHIN = 30.0
ENDING = 3.0  # seconds that a run which is about to end may take

Answer = queue.SimpleQueue[LabRun | Exception]


def start(kind: LabRun.Kind, parameters: dict[str, Any]) -> LabRun:
    """Start a run and return it; its events appear as it goes on.

    Raises:
        LockNotAcquired: another one is running.
        BackendUnavailable: the lock's server doesn't answer; nothing runs without its lock.
    """
    answer: Answer = queue.SimpleQueue()
    threading.Thread(target=_supervise, args=(kind, parameters, answer), daemon=True, name="lab").start()
    said = answer.get()
    if isinstance(said, Exception):
        raise said
    return said


def lock_of(kind: str) -> Lock:
    """Return the lock of a run: one race at a time, and a few sessions of steps."""
    if kind == LabRun.Kind.RACE:
        return get_lock(RACE_LOCK, wait=ENDING)
    return get_semaphore(STEPS_LOCK, STEP_SESSIONS, wait=ENDING)


def _place(kind: str) -> Lease:
    """Acquire the lock of a run, or be refused because of runs that go on.

    One that has said its last word is about to be gone: on a busy machine that takes a while, and the visitor
    who has seen its result is not refused for it.
    """
    places, until = 1 if kind == LabRun.Kind.RACE else STEP_SESSIONS, time.monotonic() + LEAVE_WITHIN
    while True:
        try:
            return lock_of(kind).acquire()
        except LockNotAcquired:
            if running(kind).count() >= places or time.monotonic() > until:
                raise


def running(kind: str) -> Any:
    """Return the runs that have not ended, with their `age`, by their rows."""
    return LabRun.objects.aged().filter(kind=kind, ended_at=None)


def _supervise(kind: LabRun.Kind, parameters: dict[str, Any], answer: Answer) -> None:
    try:
        with _place(kind) as lease:
            run = LabRun.objects.create(kind=kind, parameters=parameters)
            try:
                forget_old_runs()
                process = _spawn(run)
                connection.close()  # not needed while it runs, and the server may close it meanwhile
                answer.put(run)
                _see_out(process, lease)
            finally:
                _close(run)
    except Exception as error:  # also a lock that was lost meanwhile: then the answer was given long ago
        answer.put(error)
    finally:
        connection.close()


def _spawn(run: LabRun) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "orders.lab.pages.runner", run.pk],
        cwd=Path(settings.BASE_DIR),
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


def _see_out(process: subprocess.Popen[bytes], lease: Lease) -> None:
    """Wait for its end; without the lock it may not go on."""
    while process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_EVERY)
        if not _is_held(lease):
            process.terminate()
            break
    try:
        process.wait(LEAVE_WITHIN)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    finally:
        process.communicate()


def _is_held(lease: Lease) -> bool:
    """Whether the watchdog could renew it so far."""
    try:
        lease.ensure_held()
    except LockLost:
        return False
    return True


def _close(run: LabRun) -> None:
    """Say the end of a run that was killed before it could say so itself.

    What killed it may have been the end of the database, which is back in a moment.
    """
    deadline = time.monotonic() + LEAVE_WITHIN
    while True:
        try:
            return _say_end(run)
        except OperationalError:
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(LOOK_EVERY)


@transaction.atomic
def _say_end(run: LabRun) -> None:
    if LabRun.objects.filter(pk=run.pk, ended_at=None).update(ended_at=Now()):
        LabEvent.objects.create(run=run, sender=LabEvent.Sender.RUN, data={"type": "ended", "why": "died"})

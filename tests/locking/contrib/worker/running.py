"""A real worker on a real broker, for the length of a test module."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import redis
from django.conf import settings
from kombu import pools

from orders.lab.race.process_guard import guard_over, relieve
from tests import ROOT
from tests.locking.contrib.worker.app import app
from tests.support.processes import until

SOON = 30.0  # seconds within which what must happen has happened, on a slow machine too


def said(what: str, *, within: int = int(SOON)) -> str:
    """Wait until a task says something that begins so; what was said before it is forgotten."""
    with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=within + 5) as client:
        while heard := client.blpop(["said"], timeout=within):
            word = str(heard[1], "utf-8")
            if word.startswith(what):
                return word
    raise AssertionError(f"no task said {what!r} within {within} s")


def begin_in_time(task: Any, limit: str) -> None:
    """Send a task with a time limit; with a longer one where a slow machine used that up before it began."""
    for seconds in (2, 8, 32):
        task.apply_async(**{limit: seconds})
        with suppress(AssertionError):
            said(f"{task.name.rsplit('.', 1)[-1]} began", within=seconds + 2)
            return
    raise AssertionError(f"{task.name} did not begin within {seconds} s")


def tell(what: str) -> None:
    """Let a task go on that waits for this."""
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.rpush(f"tell:{what}", 1)


def send_to(broker: str) -> None:
    """Have the application in this process send there, on new connections."""
    pools.reset()
    app.conf.update(broker_url=broker)
    app._after_fork()  # type: ignore[attr-defined]  # forgets the pools, as in a new process


@contextmanager
def worker(
    broker: str, folder: Path, *options: str, visibility: float = 3600
) -> Iterator[subprocess.Popen[str]]:
    """A worker that is ready; the application in this process sends to its broker."""
    log = folder / "worker.log"
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "TEST_BROKER": broker,
        "TEST_VISIBILITY": str(visibility),
        "C_FORCE_ROOT": "1",
    }
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "tests.locking.contrib.worker.app",
        "worker",
        "--loglevel=INFO",
    ]
    command += ["--without-gossip", "--without-mingle", *options]
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True
        )
    before = app.conf.broker_url
    send_to(broker)
    guard = guard_over(process.pid)
    try:
        until(lambda: " ready." in log.read_text() or process.poll() is not None, "the worker is ready")
        assert process.poll() is None, log.read_text()
        yield process
    finally:
        relieve(guard)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        send_to(before)

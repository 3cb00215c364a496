"""Ctrl-C in the shell and the reload of `runserver` leave no lock behind, without a short lease."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen
from uuid import uuid4

import pytest

from locking.core.handler import locks
from locking.testing.contract.base import begin
from tests import ROOT
from tests.support.processes import free_ports, until
from tests.support.warm import WarmProcess

Child = subprocess.Popen[str] | WarmProcess

SHELL = """
import time
from locking import get_lock
lease = get_lock({name!r}, ttl=300).acquire()
print("held", flush=True)
for _ in range(1200):
    time.sleep(0.05)  # a signal that comes right before a sleep is seen behind it
"""

SETTINGS = """
from tests.settings import *
DEBUG = True
ROOT_URLCONF = "reloaded_urls"
ALLOWED_HOSTS = ["*"]
LOCKING = {**LOCKING, "default": {**LOCKING["default"], "WATCHDOG_TTL": 300}}
"""

URLS = """
import os, time
from django.urls import path
from locking import get_lock

def hold(request, name):
    with get_lock(name, wait=60, guarded=True):
        print("held by", os.getpid(), flush=True)
        time.sleep(600)  # holds it until it is killed

urlpatterns = [path("<str:name>", hold)]
"""

AFTER_OVERRIDE = """
from django.test.utils import override_settings
from locking import get_lock
from locking.inspection.heartbeat import reporter
memory = {"BACKEND": "locking.backends.memory.MemoryBackend"}
with override_settings(LOCKING={"default": memory, "shop": memory}):
    first = get_lock("a", backend="shop").acquire()
    reporter.beat()
entered = override_settings(LOCKING={"shop": memory})
entered.enable()  # and never disabled
second = get_lock("b", backend="shop").acquire()
"""


@contextmanager
def child(*command: str, **environ: str) -> Iterator[Child]:
    """A Python process whose standard output is read line by line; a fresh one for settings of its own."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with (
        subprocess.Popen(
            [sys.executable, *command],
            env=os.environ | environ,
            cwd=ROOT,
            start_new_session=True,
            text=True,
            **pipes,
        )
        if environ
        else WarmProcess(command, start_new_session=True, **pipes)
    ) as running:
        try:
            yield running
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)


@pytest.fixture
def name(redis_database: Any) -> str:
    return f"development:{uuid4()}"


def holder(name: str) -> Any:
    return locks["default"].holder(locks["default"].key(name))


def line_of(running: Child) -> str:
    """Return the next line about a lock."""
    assert running.stdout is not None
    return next(line for line in running.stdout if line.startswith("held")).strip()


def test_ctrl_c_in_the_shell_releases_its_locks(name: str) -> None:
    """A lease of 300 seconds that was not released is gone when the shell is."""
    with child("manage.py", "shell", "-c", SHELL.format(name=name)) as shell:
        assert line_of(shell) == "held"
        assert holder(name) is not None
        shell.send_signal(signal.SIGINT)
        shell.communicate(timeout=60)
        assert holder(name) is None


def test_a_command_of_the_shell_leaves_no_lock(name: str) -> None:
    """`shell -c` drops its variables before the process ends: a renewed lease is released all the same."""
    command = f"from locking import get_lock; lease = get_lock({name!r}).acquire(); print('held')"
    with child("manage.py", "shell", "-c", command) as shell:
        assert line_of(shell) == "held"
        shell.communicate(timeout=60)
        assert holder(name) is None


def pressed(port: int, name: str) -> bool:
    """Send a request, don't wait for its answer, and return False: what matters is what it prints."""
    with suppress(OSError):
        urlopen(f"http://127.0.0.1:{port}/{name}", timeout=0.5).close()
    return False


@pytest.mark.whole
def test_a_reload_of_runserver_frees_the_guarded_lock_of_a_request(name: str, tmp_path: Path) -> None:
    """The request that held it died in the reload: the next process gets it long before 300 s are over."""
    (tmp_path / "reloaded_settings.py").write_text(SETTINGS)
    urls = tmp_path / "reloaded_urls.py"
    urls.write_text(URLS)
    (port,) = free_ports(1)
    environ = {"DJANGO_SETTINGS_MODULE": "reloaded_settings", "PYTHONPATH": str(tmp_path)}
    with child("manage.py", "runserver", str(port), **environ) as server:
        holders: list[str] = []

        def read(lines: int) -> None:
            for _ in range(lines):
                holders.append(line_of(server))

        reader = begin(lambda: read(2))
        until(lambda: pressed(port, name) or holders, "the first holder", within=60)
        first = Path("/proc", holders[0].rpartition(" ")[2])
        urls.write_text(URLS + "# changed\n")

        def reloaded() -> bool:
            if first.exists():  # what the reloader sees when it looks for the first time is no change to it
                urls.touch()
            return pressed(port, name) or reader.done()

        until(reloaded, "the holder after the reload", within=60)
        reader.result()
        assert len(set(holders)) == 2


def test_a_process_ends_quietly_after_override_settings() -> None:
    """Aliases that are gone, and settings that were not restored, raise nothing at exit."""
    with child("-c", AFTER_OVERRIDE) as running:
        _, errors = running.communicate(timeout=60)
        assert (running.returncode, errors) == (0, "")

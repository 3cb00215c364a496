"""The demo project's page of metrics: there when it is asked for, and not otherwise."""

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from config.serve import server, share_metrics
from locking.testing.contract.base import until
from tests import ROOT
from tests.config.test_serve import answer
from tests.support.processes import free_ports

ASK = """
import django
django.setup()
from django.test import Client
from locking import get_lock
with get_lock("order:1", template="order:<id>", backend="memory"):
    answer = Client().get("/metrics")
print(answer.status_code, 'locking_held{backend="memory",lock="order:<id>"} 1.0' in answer.content.decode())
"""

SETTINGS = """
from tests.settings import *
ALLOWED_HOSTS = ["testserver"]
LOCKING["memory"] = {"BACKEND": "locking.backends.memory.MemoryBackend"}
"""


@pytest.mark.parametrize(("metrics", "answer"), [("true", "200 True"), ("false", "404 False")])
def test_metrics_are_there_when_they_are_asked_for(tmp_path, metrics, answer):
    """By METRICS=true: the page is for machines, not for the public."""
    (tmp_path / "metered.py").write_text(SETTINGS)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    wanted = {"METRICS": metrics, "DJANGO_SETTINGS_MODULE": "metered", "PYTHONPATH": path}
    command = [sys.executable, "-c", ASK]
    said = subprocess.check_output(command, cwd=ROOT, env=os.environ | wanted, text=True)
    assert said.strip() == answer


HOLD = """
import os
from pathlib import Path
from django.http import HttpResponse
from django.urls import path
from config.urls import urlpatterns
from locking import get_lock

FOLDER = Path(os.environ["HOLDFAST_TEST_FOLDER"])

def whoami(request):
    return HttpResponse(os.getpid())

def hold(request, name):
    with get_lock(f"order:{name}", template="order:<id>"):
        (FOLDER / f"{name}.pid").write_text(str(os.getpid()))
        (FOLDER / name).read_text()
    return HttpResponse()

urlpatterns = [*urlpatterns, path("hold/<name>", hold), path("whoami", whoami)]
"""
HELD = 'locking_held{backend="default",lock="order:<id>"}'
ACQUIRED = 'locking_acquisitions_total{backend="default",lock="order:<id>",outcome="acquired"}'
PATIENCE = 30.0


@contextmanager
def two_workers(folder: Path, port: int) -> Iterator[None]:
    """Serve the project by two workers, and a view that holds a lock until a signal; both workers answer.

    One that doesn't yet would leave every connection to the other, whose threads are soon all taken.
    """
    (folder / "held_urls.py").write_text(HOLD)
    (folder / "served.py").write_text('from tests.settings import *\nROOT_URLCONF = "held_urls"\n')
    (folder / "figures").mkdir()
    wanted = {
        "METRICS": "true",
        "DEBUG": "true",
        "DJANGO_SETTINGS_MODULE": "served",
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "HOLDFAST_TEST_FOLDER": str(folder),
        "PROMETHEUS_MULTIPROC_DIR": str(folder / "figures"),
    }
    command = server(port)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=os.environ | wanted, stderr=log)
    try:
        assert answer(f"http://127.0.0.1:{port}/livez") == 200
        answered: set[bytes] = set()

        def both_answer() -> bool:
            answered.add(pid_of_answer(port))
            return len(answered) == 2

        until(both_answer, PATIENCE)
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


def pid_of_answer(port: int) -> bytes:
    """Return the process id of the worker that gets the next connection."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/whoami", timeout=PATIENCE) as page:
        return bytes(page.read())


def scraped(port: int) -> dict[str, float]:
    """Return what a scrape tells."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as page:
        lines = (line.rpartition(" ") for line in page.read().decode().splitlines() if line[0] != "#")
        return {name: float(value) for name, _, value in lines}


def held_now(port: int) -> float | None:
    """Return the locks that are held; None where the connection was the killed worker's."""
    try:
        return scraped(port)[HELD]
    except OSError:
        return None


@pytest.mark.django_db(transaction=True)
def test_one_worker_answers_for_all_and_the_dead_hold_nothing(tmp_path):
    """Both workers hold locks: either tells the sum of both, and neither tells of a killed one."""

    def hold(name: str) -> None:
        with suppress(OSError):  # some callers' worker is killed
            urllib.request.urlopen(f"http://127.0.0.1:{port}/hold/{name}", timeout=PATIENCE).close()

    def begin(name: str) -> str:
        """Have some worker hold a lock; return the worker's process id."""
        os.mkfifo(tmp_path / name)
        calls.append(callers.submit(hold, name))
        written = tmp_path / f"{name}.pid"
        until(lambda: written.exists() and written.read_text(), PATIENCE)
        return str(written.read_text())

    (port,) = free_ports(1)
    calls: list[Future[None]] = []
    holders: dict[str, str] = {}
    with two_workers(tmp_path, port), ThreadPoolExecutor(30) as callers:
        while len(set(holders.values())) < 2:  # the kernel chooses who accepts a connection
            name = str(len(holders))
            holders[name] = begin(name)
        total, victim = len(holders), holders["0"]
        reported = scraped(port)
        assert (reported[ACQUIRED], reported[HELD]) == (total, total)
        os.kill(int(victim), signal.SIGKILL)
        survivors = [name for name, pid in holders.items() if pid != victim]
        until(lambda: held_now(port) == len(survivors), PATIENCE)
        for name in survivors:
            (tmp_path / name).write_text("go on")
        until(lambda: scraped(port)[HELD] == 0.0, PATIENCE)
        assert scraped(port)[ACQUIRED] == total
        for call in calls:
            call.result(timeout=PATIENCE)


@pytest.mark.parametrize(
    ("wanted", "given", "shared"), [(True, "", True), (True, "/there", True), (False, "", False)]
)
def test_make_serve_shares_the_figures_of_its_workers(settings, monkeypatch, tmp_path, wanted, given, shared):
    """With METRICS they get a new folder, unless one is named; without, none."""
    settings.METRICS = wanted
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", given)
    if not given:
        monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR")
    share_metrics()
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    assert (folder is not None) is shared
    assert folder in (None, given) or list(Path(folder).iterdir()) == []
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)

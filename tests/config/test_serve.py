"""`make serve`: what it refuses and what it says."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import pytest

from config import serve
from config import server as server_module
from config.server import HOST, STOP_SECONDS
from locking.testing.contract.base import until
from tests import ROOT
from tests.support.processes import free_ports


@pytest.mark.parametrize("text", ["", "shop", "0", "65536", "-1", "80 80", "٨٠"])
def test_a_wrong_port_is_named(text):
    """An invalid port is refused with the text, the range and an example."""
    with pytest.raises(ValueError, match="is not a port; give a number from 1 to 65535"):
        serve.port_of(text)


def test_a_port_in_use_is_refused_with_the_way_out():
    """A port that another program has ends in one sentence that offers another."""
    with closing(socket.create_server((HOST, 0))) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "config.serve", str(port)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"holdfast: port {port} can't be bound (Address already in use); ")
    assert "make serve PORT=" in done.stderr


def test_it_says_the_addresses_and_serves():
    """The addresses and the demo's login come first, and the server answers there."""
    (port,) = free_ports(1)
    process = subprocess.Popen(
        [sys.executable, "-m", "config.serve", str(port)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            said = "".join(process.stdout.readline() for _ in range(3))
            assert f"http://{HOST}:{port}/admin/   (user admin, password admin)" in said
            assert answer(f"http://{HOST}:{port}/admin/login/") == 200
        finally:
            process.terminate()


SLOW = """
import os
from django.http import HttpResponse
from django.urls import path
from config.urls import urlpatterns

def slow(request):
    with open(os.environ["HOLDFAST_TEST_FIFO"]) as fifo:
        return HttpResponse(fifo.read())

urlpatterns = [*urlpatterns, path("slow", slow)]
"""


@contextmanager
def served(log: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Serve the shop by the command of `make serve`; yield the server's process and port."""
    (port,) = free_ports(1)
    with log.open("wb") as out:
        process = subprocess.Popen(serve.server(port), cwd=ROOT, stdout=out, stderr=out)
    with process:
        try:
            assert answer(f"http://{HOST}:{port}/livez") == 200
            yield process, port
        finally:
            process.kill()


def workers_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The living workers."""
    children = psutil.Process(process.pid).children()
    return [child for child in children if child.status() != psutil.STATUS_ZOMBIE]


def test_a_closed_terminal_ends_the_server(tmp_path):
    """It would keep the port for good; under nohup, whose SIGHUP is ignored, it stays."""
    for disposition, stays in ((signal.SIG_IGN, True), (signal.SIG_DFL, False)):
        before = signal.signal(signal.SIGHUP, disposition)  # which the server inherits
        try:
            with served(tmp_path / "log") as (process, port):
                process.send_signal(signal.SIGHUP)
                if stays:
                    assert answer(f"http://{HOST}:{port}/livez") == 200
                else:
                    assert process.wait(STOP_SECONDS) == 0
        finally:
            signal.signal(signal.SIGHUP, before)


COUNTED = """
import os
from pathlib import Path
from tests.settings import *
with Path(os.environ["HOLDFAST_TEST_LOADS"]).open("a") as loads:
    print(os.getpid(), file=loads)
"""


def test_workers_that_are_killed_again_and_again_are_replaced_at_once(tmp_path, monkeypatch):
    """The shop stays up however often a worker dies; granian alone gives up at the second time.

    It is loaded once, before the workers are forked, so a killed one's successor serves at once.
    """
    (tmp_path / "counted.py").write_text(COUNTED)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "counted")
    monkeypatch.setenv("HOLDFAST_TEST_LOADS", str(tmp_path / "loads"))
    with served(tmp_path / "log") as (process, port):
        for killed in (1, 1, 1, 2):
            until(lambda: len(workers_of(process)) == 2, 30)
            victims = workers_of(process)[:killed]
            for victim in victims:
                victim.kill()
            assert psutil.wait_procs(victims, timeout=30)[1] == []
        until(lambda: len(workers_of(process)) == 2, 30)
        assert answer(f"http://{HOST}:{port}/livez") == 200
        assert (tmp_path / "loads").read_text() == f"{process.pid}\n"


@pytest.fixture
def slow_shop(tmp_path, monkeypatch):
    """The shop with a view that answers when the test writes into its pipe."""
    (tmp_path / "slow.py").write_text('from tests.settings import *\nROOT_URLCONF = "slow_urls"\n')
    (tmp_path / "slow_urls.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "slow")
    monkeypatch.setenv("HOLDFAST_TEST_FIFO", str(tmp_path / "fifo"))
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal at a parent's death is Linux's")
@pytest.mark.parametrize(("forked_by", "code"), [("its parent", 0), ("a server that is dead", 1)])
def test_a_worker_whose_server_died_right_behind_the_fork_ends(monkeypatch, forked_by, code):
    """The parent died before the worker asked for its signal: the worker sees another parent."""
    server_module.note_fork()
    if forked_by != "its parent":
        monkeypatch.setattr(server_module, "_forked_by", -1)
    child = os.fork()
    if not child:
        server_module.become_worker()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == code


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal at a parent's death is Linux's")
def test_workers_end_with_a_killed_server(tmp_path):
    """No worker keeps the port when the server itself is killed."""
    with served(tmp_path / "log") as (process, _):
        until(lambda: len(workers_of(process)) == 2, 30)
        workers = workers_of(process)
        process.kill()
        assert psutil.wait_procs(workers, timeout=30)[1] == []


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal at a parent's death is Linux's")
def test_a_worker_with_a_request_under_way_ends_with_a_killed_server(tmp_path, slow_shop):
    """No parent would be left to end its wait for a request that never ends."""
    with served(tmp_path / "log") as (process, port), socket.create_connection((HOST, port)) as client:
        workers = workers_of(process)
        client.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with slow_shop.open("w"):  # opens once the view reads it
            process.kill()
            assert psutil.wait_procs(workers, timeout=30)[1] == []


def test_a_server_that_has_just_begun_stops_at_once(tmp_path):
    """A signal that meets a worker in its start isn't swallowed."""
    with (tmp_path / "log").open("wb") as out:
        process = subprocess.Popen(serve.server(*free_ports(1)), cwd=ROOT, stdout=out, stderr=out)
    with process:
        until(lambda: "Spawning worker-2" in (tmp_path / "log").read_text(), 30)
        process.terminate()
        assert process.wait(STOP_SECONDS - 5) == 0


def test_a_worker_that_missed_the_signal_is_asked_again(monkeypatch):
    """One that was only starting went on for 30 seconds, until it was killed."""
    monkeypatch.setattr(server_module, "ASK_AGAIN", 0.01)
    asked: list[object] = []
    ended = threading.Event()

    class Starting:
        """A worker that hears the second signal."""

        idx = 0

        def terminate(self):
            asked.append(self)
            if len(asked) == 2:
                ended.set()

        def join(self, timeout):
            assert ended.wait(timeout)

        def is_alive(self):
            return not ended.is_set()

    shop: Any = server_module.Server.__new__(server_module.Server)
    shop.wrks, shop.workers_kill_timeout = [Starting()], 30
    shop._stop_workers()
    assert len(asked) >= 2


def test_a_request_under_way_is_answered_before_the_server_stops(tmp_path, slow_shop):
    """SIGTERM lets the requests at work end."""
    with served(tmp_path / "log") as (process, port), ThreadPoolExecutor() as caller:
        reply = caller.submit(answer, f"http://{HOST}:{port}/slow")
        with slow_shop.open("w") as fifo:  # opens once the view reads it
            process.terminate()
            until(lambda: "Shutting down" in (tmp_path / "log").read_text(), 30)
            fifo.write("go on")
        assert reply.result(timeout=30) == 200
        assert process.wait(30) == 0


def test_a_chunked_body_is_read(tmp_path):
    """A body without Content-Length is judged like any other, its size too."""
    headers = {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}
    with served(tmp_path / "log") as (_, port):
        for body, status in ((b"{}", 400), (b'{"lines": ' + b" " * 70_000 + b"[]}", 413)):
            with closing(HTTPConnection(HOST, port, timeout=30)) as shop:
                shop.request("POST", "/checkout/", iter([body]), headers, encode_chunked=True)
                assert shop.getresponse().status == status


def answer(url: str, seconds: float = 30) -> int:
    """The status of the first answer."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=seconds) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            time.sleep(0.1)  # nothing listens yet: it is asked again
    raise AssertionError(f"{url} never answered")

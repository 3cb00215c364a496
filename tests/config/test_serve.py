"""`make serve`: what it refuses and what it says."""

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import closing

import pytest

from config import serve
from tests.config.conftest import ROOT


@pytest.mark.parametrize("text", ["", "shop", "0", "65536", "-1", "80 80", "٨٠"])
def test_a_wrong_port_is_named(text):
    """What is no port is refused with the text, the range and an example."""
    with pytest.raises(ValueError, match="is not a port; give a number from 1 to 65535"):
        serve.port_of(text)


def test_a_port_in_use_is_refused_with_the_way_out():
    """A port that another program has ends in one sentence that offers another."""
    with closing(socket.create_server((serve.HOST, 0))) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "config.serve", str(port)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"holdfast: port {port} can't be had (Address already in use); ")
    assert "make serve PORT=" in done.stderr


def test_it_says_the_addresses_and_serves():
    """The addresses and the demo's login come first, and gunicorn answers there."""
    port = free_port()
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
            assert f"http://{serve.HOST}:{port}/admin/   (user admin, password admin)" in said
            assert answer(f"http://{serve.HOST}:{port}/admin/login/") == 200
        finally:
            process.terminate()


def free_port() -> int:
    """A port that is free now."""
    with closing(socket.create_server((serve.HOST, 0))) as probe:
        return int(probe.getsockname()[1])


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
            time.sleep(0.1)
    raise AssertionError(f"{url} never answered")

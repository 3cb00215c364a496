"""The shop as `make serve` serves it, for tests that must see several processes at work."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from orders.lab.race.process_guard import guarded
from tests import ROOT


@pytest.fixture(scope="session")
def server(django_db_setup: None) -> Iterator[str]:
    """The address of the shop, served by the command of `make serve` on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # Tests delete products and make others of the same name, faster than anything is announced.
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "DEBUG": "true",
        "SOLD_OUT_MEMORY": "0",
    }
    command = [sys.executable, "-m", "config.serve", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with guarded(process):
        try:
            # granian's own word that a worker is up; an end of the stream means that it never will be.
            log = iter(process.stdout.readline, "")
            assert any("Started worker" in line for line in log), "the server did not start"
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.communicate(timeout=30)

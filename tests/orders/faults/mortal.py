"""Requests whose process is really killed: forked from one warm parent, ended by SIGKILL at an exchange.

The parent (`python -m tests.orders.faults.mortal`) loads Django once and only forks; it opens no connection,
so that no child inherits one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the parent imports models only after Django's set-up
    from tests.orders.faults.explorer import Answer, Point


READY = "ready\n"

HUNG = 110.0
"""Seconds after which a request hangs, rather than being served slowly by a busy machine."""


class Mortals:
    """The warm parent as a test sees it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.orders.faults.mortal"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == READY, "the warm parent did not start"

    def send(self, point: Point, sku: str, key: str | None) -> Answer | None:
        """Let a new process send the request and be killed at `point`; return its answer if it wasn't."""
        from tests.orders.faults.explorer import Answer

        assert self._process.stdin is not None
        assert self._process.stdout is not None
        alarm = threading.Timer(HUNG, self._process.kill)
        alarm.start()
        try:
            order = [point.strategy, sku, key, point.number, point.fault]
            print(json.dumps(order), file=self._process.stdin, flush=True)
            told = json.loads(self._process.stdout.readline())
        finally:
            alarm.cancel()
        return Answer(*told) if told else None

    def close(self) -> None:
        """End the parent; it has no child left."""
        self._process.communicate(timeout=60)


@contextmanager
def mortals() -> Iterator[Mortals]:
    """Give a warm parent for the block."""
    parent = Mortals()
    try:
        yield parent
    finally:
        parent.close()


def send_and_die(strategy: str, sku: str, key: str | None, number: int, fault: str) -> Answer:
    """Send the request in this process, which is killed on the way."""
    from django.test import override_settings

    from tests.orders.faults.explorer import post, predictable
    from tests.orders.faults.transport import Transport

    predictable()
    with override_settings(CHECKOUT_STRATEGY=strategy), Transport(number, fault).installed():
        return post(sku, key)


def load_everything() -> None:
    """Import what a request needs, so that a child begins at once."""
    from django.test import Client

    import tests.orders.faults.explorer  # noqa: F401

    Client().post("/checkout/", "{}", content_type="application/json")  # refused before a server is asked


def serve() -> None:
    """Fork a buyer for each line that comes in, and print its answer; an empty list when it was killed."""
    import django
    from django.test.utils import setup_test_environment

    from tests.inventory.mortal import shorten_leases

    django.setup()
    setup_test_environment()
    shorten_leases()
    load_everything()
    print(READY, end="", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            answer = send_and_die(*json.loads(line))
            print(json.dumps([answer.status, answer.kind, answer.order]), flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            print("[]", flush=True)


if __name__ == "__main__":
    serve()

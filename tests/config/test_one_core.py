"""With WORKER_CPU_AFFINITY the threads that run a worker's Python share a core."""

from __future__ import annotations

import io
import os
import threading
from typing import Any

import pytest

from config.requests import Bodies, Gateway, OneCore

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux only")


class Protocol:
    """Takes the answer that a client would get."""

    def response_bytes(self, *answer: Any) -> None:
        """Drop it."""


def cores_of(gateway: Gateway, *paths: str) -> list[set[int]]:
    """Answer requests for these addresses in one new thread; return its cores behind each."""
    found: list[set[int]] = []

    def answer_all() -> None:
        for path in paths:
            gateway.run(Protocol(), {"PATH_INFO": path, "wsgi.input": io.BytesIO()})
            found.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=answer_all)
    thread.start()
    thread.join(30)
    return found


def application(environ: Any, start: Any) -> list[bytes]:
    start("200 OK", [])
    return [b""]


def test_a_thread_stays_on_its_workers_core():
    """It is chosen by the worker's number; the lab, whose processes would inherit it, is left all of them."""
    every = os.sched_getaffinity(0)
    for number in range(3):
        gateway = Gateway(application, Bodies(), 2, core=OneCore(number))
        one = {sorted(every)[number % len(every)]}
        assert cores_of(gateway, "/checkout/", "/lab/runs/", "/products/") == [one, every, one]
    assert os.sched_getaffinity(0) == every


def test_without_the_setting_it_may_use_all():
    gateway = Gateway(application, Bodies(), 2)
    assert cores_of(gateway, "/checkout/") == [os.sched_getaffinity(0)]

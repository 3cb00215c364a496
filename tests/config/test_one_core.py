"""With WORKER_CPU_AFFINITY the threads that run a worker's Python share a core."""

from __future__ import annotations

import io
import os
import threading
from typing import Any
from unittest import mock

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


def behind_work(number: int, share: float) -> OneCore:
    """Return what a worker has that has used this share of a core for a while."""
    with mock.patch("config.requests.time") as clock:
        clock.monotonic.return_value = clock.process_time.return_value = 0.0
        core = OneCore(number)
        clock.monotonic.return_value, clock.process_time.return_value = 1.0, share
        core._look()
    return core


def application(environ: Any, start: Any) -> list[bytes]:
    start("200 OK", [])
    return [b""]


def test_a_thread_stays_on_its_workers_core():
    """It is chosen by the worker's number; the lab, whose processes would inherit it, is left all of them."""
    every = os.sched_getaffinity(0)
    for number in range(3):
        gateway = Gateway(application, Bodies(), 2, core=behind_work(number, share=1.0))
        one = {sorted(every)[number % len(every)]}
        assert cores_of(gateway, "/checkout/", "/lab/runs/", "/products/") == [one, every, one]
    assert os.sched_getaffinity(0) == every


def test_threads_that_wait_use_any_core():
    gateway = Gateway(application, Bodies(), 2, core=behind_work(0, share=0.2))
    assert cores_of(gateway, "/checkout/") == [os.sched_getaffinity(0)]


def test_without_the_setting_it_may_use_all():
    gateway = Gateway(application, Bodies(), 2)
    assert cores_of(gateway, "/checkout/") == [os.sched_getaffinity(0)]

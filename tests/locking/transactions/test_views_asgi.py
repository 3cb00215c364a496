"""`@distributed_lock` on views behind a real ASGI server, with requests that overlap."""

from __future__ import annotations

import asyncio
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import uvicorn
from django.contrib.auth.models import Group
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

from locking import assert_locked, distributed_lock, get_lock
from tests.locking.support.helpers import committed
from tests.support.processes import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]

SOON = 20.0
began, go_on = threading.Event(), threading.Event()


@distributed_lock(key="'order:'+<order_id>", wait=0)
async def waiting(request: HttpRequest, order_id: int) -> HttpResponse:
    """Hold its lock until the test has seen enough."""
    began.set()
    while not go_on.is_set():
        await asyncio.sleep(0.005)  # polls: the event is set by another thread
    assert_locked(f"order:{order_id}")
    return HttpResponse("done")


@distributed_lock(key="'order:'+<order_id>", wait=SOON)
def selling(request: HttpRequest, order_id: int) -> HttpResponse:
    """Reads, decides and writes in a thread of the server's."""
    number = Group.objects.count()
    Group.objects.create(name=f"sale {number}")
    return HttpResponse(status=201)


urlpatterns = [path("waiting/<int:order_id>/", waiting), path("selling/<int:order_id>/", selling)]


@pytest.fixture
def address() -> Iterator[str]:
    """Where uvicorn serves this module's views."""
    began.clear()
    go_on.clear()
    config = uvicorn.Config(get_asgi_application(), port=0, lifespan="off", ws="none", log_level="error")
    server = uvicorn.Server(config)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)  # so that those who come before the server is up wait for it
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            go_on.set()
            server.should_exit = True
            thread.join(SOON)


def get(address: str) -> int:
    """The status of an answer."""
    try:
        with urllib.request.urlopen(address, timeout=SOON) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_an_async_view_holds_its_lock_while_it_waits(address: str) -> None:
    """Meanwhile the same loop answers 409 for this order, and serves another."""
    with ThreadPoolExecutor(1) as others:
        first = others.submit(get, f"{address}/waiting/7/")
        assert began.wait(SOON)
        assert get(f"{address}/waiting/7/") == 409
        assert get(f"{address}/selling/8/") == 201
        go_on.set()
        assert first.result() == 200
    assert not get_lock("order:7").locked()
    go_on.set()
    assert get(f"{address}/waiting/7/") == 200


def test_a_visitor_who_leaves_leaves_no_lock(address: str) -> None:
    """The server cancels the view of a closed connection, and the lock goes with it."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=SOON) as visitor:
        visitor.sendall(b"GET /waiting/7/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert began.wait(SOON)
        assert get_lock("order:7").locked()
    until(lambda: not get_lock("order:7").locked(), "the lock of a cancelled view is free")


def test_sync_views_take_turns(address: str) -> None:
    """Each sale has seen the one before: the commit comes before the release here too."""
    with ThreadPoolExecutor(8) as buyers:
        answers = list(buyers.map(get, [f"{address}/selling/7/"] * 16))
    assert answers == [201] * 16
    assert sorted(committed()) == sorted(f"sale {number}" for number in range(16))

"""Threads that look for a master at the same time lose no Sentinel over it; tasks ask in a thread."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import Any
from unittest import mock
from unittest.mock import Mock

import pytest
from redis.connection import ConnectionPool, SSLConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.sentinel import SentinelConnectionPool, SentinelManagedSSLConnection

from locking.backends.redis import async_transport
from locking.backends.redis.protocol import Terms
from locking.backends.redis.scripts import Index
from locking.backends.redis.sentinel import Sentinels

STATE = {
    "is_master": True, "is_sdown": False, "is_odown": False, "num-other-sentinels": 1, "ip": "::1", "port": 1,
}  # fmt: skip


@pytest.mark.parametrize("kind", [SSLConnection, SentinelManagedSSLConnection])
def test_a_server_by_tls_is_reached_by_tasks_of_an_older_redis_py(kind, monkeypatch):
    """Before 7.2 its asyncio client refuses two arguments that its blocking one passes on as None."""
    made = mock.Mock()
    monkeypatch.setattr(async_transport, "SSLConnection", made)
    given: Any = {"ssl_cert_reqs": "required", "ssl_ca_path": None, "ssl_password": None, "retry": 3}
    async_transport.connection_like(ConnectionPool(connection_class=kind, **given))
    options = made.call_args.kwargs
    assert options["ssl_cert_reqs"] == "required"
    assert not {"ssl_ca_path", "ssl_password"} & options.keys()


def _unreachable():
    raise RedisConnectionError("no answer")


def test_two_threads_that_ask_at_once_keep_every_sentinel():
    """Both find the first Sentinel down and are answered by the second together; each is kept, once."""
    both = Barrier(2, timeout=20)

    def answer():
        both.wait()
        return {"shop": STATE}

    down, up = Mock(sentinel_masters=_unreachable), Mock(sentinel_masters=answer)
    sentinels = Sentinels([])
    sentinels.sentinels = [down, up]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(sentinels.discover_master, ["shop"] * 2))
    assert found == [("::1", 1)] * 2
    assert sentinels.sentinels == [up, down]


def test_tasks_that_ask_at_once_share_the_answer():
    """One thread asks for all of them, however many connect: a Sentinel that hangs takes no other thread."""
    go = Event()
    ask = Mock(side_effect=lambda: go.wait(20) and ("::1", 1))
    pool = Mock(spec=SentinelConnectionPool, get_master_address=ask)
    server = async_transport.AsyncServer(Terms("default", Index()), pool)

    async def scenario():
        tasks = [asyncio.create_task(server._master()) for _ in range(2)]
        await asyncio.sleep(0)
        go.set()
        assert await asyncio.gather(*tasks) == [("::1", 1)] * 2

    asyncio.run(scenario())
    assert ask.call_count == 1

"""Threads or tasks that look for a master at the same time lose no Sentinel over it."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from unittest.mock import Mock

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from locking.backends.redis.async_transport import _options_like
from locking.backends.redis.sentinels import AsyncSentinels, Sentinels

STATE = {
    "is_master": True, "is_sdown": False, "is_odown": False, "num-other-sentinels": 1, "ip": "::1", "port": 1,
}  # fmt: skip


def test_a_sentinel_by_tls_is_asked_by_tasks_of_an_older_redis_py():
    """Before 7.2 its asyncio client refuses two arguments that its blocking one passes on as None."""
    options, _ = _options_like(Redis(ssl=True).connection_pool)
    assert options["ssl_cert_reqs"] == "required"
    assert not {"ssl_ca_path", "ssl_password"} & options.keys()


def _unreachable():
    raise RedisConnectionError("no answer")


def test_threads():
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


def test_tasks():
    """The same in one event loop."""

    async def scenario():
        both = asyncio.Barrier(2)

        async def answer():
            await both.wait()
            return {"shop": STATE}

        async def down():
            _unreachable()

        first, second = Mock(sentinel_masters=down), Mock(sentinel_masters=answer)
        sentinels = AsyncSentinels([])
        sentinels.sentinels = [first, second]
        asked = (sentinels.discover_master("shop") for _ in range(2))
        assert await asyncio.gather(*asked) == [("::1", 1)] * 2
        assert sentinels.sentinels == [second, first]

    asyncio.run(scenario())

"""An event loop that shuts down closes every connection that was opened in it."""

import asyncio
from unittest.mock import AsyncMock

from redis.exceptions import TimeoutError as RedisTimeoutError

from locking.backends.redis.async_transport import _close_all


def test_a_sentinel_whose_good_bye_takes_too_long_leaves_no_other_open():
    """redis-py raises that; the connections to the Sentinels behind it are closed all the same."""
    slow, quick = AsyncMock(**{"aclose.side_effect": RedisTimeoutError("no good-bye")}), AsyncMock()
    asyncio.run(_close_all([slow, quick]))
    assert quick.aclose.await_count == 1

"""An event loop that shuts down closes every connection that was opened in it."""

import asyncio
from typing import Any
from unittest.mock import AsyncMock

from django.conf import settings
from redis.connection import ConnectionPool
from redis.exceptions import TimeoutError as RedisTimeoutError

from locking.backends.redis.async_transport import AsyncTransport, _close_all, connections_like
from locking.backends.redis.topology import LISTEN_BOTH


def test_a_sentinel_whose_good_bye_takes_too_long_leaves_no_other_open():
    """redis-py raises that; the connections to the Sentinels behind it are closed all the same."""
    slow, quick = AsyncMock(**{"aclose.side_effect": RedisTimeoutError("no good-bye")}), AsyncMock()
    asyncio.run(_close_all([slow, quick]))
    assert quick.aclose.await_count == 1


def test_a_subscribed_socket_that_breaks_while_a_task_leaves_is_not_opened_again():
    """A cluster's task says good-bye twice; redis-py would connect for the second, and never close."""

    async def scenario():
        pool = ConnectionPool.from_url(settings.REDIS_URL)
        transport = AsyncTransport(connections_like(pool), LISTEN_BOTH)
        subscription = await transport.subscriptions.open("task")
        reader = subscription.reader
        await subscription.listen("redisson_lock__channel:{a}")
        connection: Any = reader.connection.connection
        send = connection.send_command

        async def sent_and_broken(*parts, **options):
            await send(*parts, **options)
            connection.send_command = send
            subscription.close()  # as the task that reads does then

        connection.send_command = sent_and_broken
        await reader.leave(subscription)
        await transport.shutdown()
        assert not connection.is_connected

    asyncio.run(scenario())

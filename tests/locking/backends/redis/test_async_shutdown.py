"""An event loop that shuts down closes every connection that was opened in it."""

import asyncio
from typing import Any

from django.conf import settings
from redis.connection import ConnectionPool

from locking.backends.redis.async_transport import AsyncServer
from locking.backends.redis.cluster import LISTEN_BOTH
from locking.backends.redis.protocol import Terms
from locking.backends.redis.scripts import Index


def test_a_subscribed_socket_that_breaks_while_a_task_leaves_is_not_opened_again():
    """A cluster's task says good-bye twice; redis-py would connect for the second, and never close."""

    async def scenario():
        pool = ConnectionPool.from_url(settings.REDIS_URL)
        server = AsyncServer(Terms("default", Index()), pool, LISTEN_BOTH)
        subscription = await server.subscribe("task")
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
        await server.shutdown()
        assert not connection.is_connected

    asyncio.run(scenario())

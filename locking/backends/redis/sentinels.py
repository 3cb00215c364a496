"""Finds the master of a service: its Sentinels are asked in turn, first the one that answered last time.

redis-py moves that one to the front of a list that all share, from the place where it was when it was
asked. Of two threads or tasks that ask at once, the second then puts it in twice and drops another Sentinel,
which is never asked again, nor its connections closed. Here each asks in a list of its own.
"""

from __future__ import annotations

from copy import copy
from typing import Any

from redis.asyncio.sentinel import Sentinel as TaskSentinel
from redis.sentinel import Sentinel


class Sentinels(Sentinel):
    """What threads ask."""

    def discover_master(self, service_name: str) -> Any:
        """See redis-py."""
        own = copy(self)
        own.sentinels = list(self.sentinels)
        found = Sentinel.discover_master(own, service_name)
        self.sentinels = own.sentinels
        return found


class AsyncSentinels(TaskSentinel):
    """What tasks ask."""

    async def discover_master(self, service_name: str) -> Any:
        """See redis-py."""
        own = copy(self)
        own.sentinels = list(self.sentinels)
        found = await TaskSentinel.discover_master(own, service_name)
        self.sentinels = own.sentinels
        return found

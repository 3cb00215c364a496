"""Locks on Redis, in the layout of Redisson's reentrant lock, with hand-over in the release script.

backend   the verbs of the contract, for threads and for asyncio
scripts   what is sent and what the answers mean; no I/O
wire      sockets for threads: one request, one reply, bounded retries
waiting   the wake-up channel of a waiting thread
aio       the same two for asyncio
"""

from locking.backends.redis.backend import RedisBackend

__all__ = ["RedisBackend"]

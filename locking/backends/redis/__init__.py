"""Locks on Redis, in the layout of Redisson's reentrant lock, with handoff in the release script.

backend          the engine: the ordinary lock, what is held, checks
verbs            the verbs of the contract, for every kind of lock
kinds, scripts   what is sent and what the answers mean
protocol         requests, no I/O: sockets, lost replies, pipelines
waiter           queueing and being woken, no I/O either
transport        the I/O of both on a thread
async_transport  their I/O in an event loop
topology         from the settings to the servers

Loaded at their first use: `cluster` and `sentinel`. `redisson_kinds` registers the other kinds where it is.
"""

from locking.backends.redis.backend import RedisBackend

__all__ = ["RedisBackend"]

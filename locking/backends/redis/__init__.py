"""Locks on Redis, in the layout of Redisson's reentrant lock, with handoff in the release script.

backend          the verbs of the contract, for the ordinary lock and every other kind
listing          what is held, and by whom
diagnosis        what endangers locks on a server
scripts          what is sent and what the answers mean, for the ordinary lock and what all kinds share
protocol         requests, no I/O: sockets, lost replies, pipelines
waiter           queueing and being woken, no I/O either
transport        the I/O of both on a thread
async_transport  their I/O in an event loop
topology         from the settings to the servers

Loaded at their first use: `cluster` and `sentinel`. `redisson_kinds` registers the other kinds where it is.
"""

from locking.backends.redis.backend import RedisBackend

__all__ = ["RedisBackend"]

"""Where the list of what is held is kept: a sorted set beside the locks, written by the scripts themselves.

A member is one hold, its score the fencing token that was minted for it: microseconds of the server's clock,
so the oldest hold comes first and a renewal changes nothing. The list is advisory. A reader looks
at each lock, and takes out what has ended by itself. The member `~` is no hold: its score is the last token
of all names.

    holdfast_held:<KEY_PREFIX>           on one server, or one master
    holdfast_held:{<tag>}:<KEY_PREFIX>   in a cluster, one for each slot that ever had a lock
"""

from __future__ import annotations

from functools import lru_cache
from itertools import count

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot


class Index:
    """Names the index of each lock of one alias.

    Args:
        prefix: the alias's `KEY_PREFIX`: each has an index of its own, so that an ACL can keep them apart.
        clustered: whether the index must lie in the slot of its lock.
    """

    def __init__(self, prefix: str = "", *, clustered: bool = False) -> None:
        self.clustered = clustered
        self._prefix = prefix.encode()
        self._only = b"holdfast_held:" + self._prefix
        if clustered:
            tags()  # once, where the backend is built: threads that all met it first would each work it out

    def of(self, key: bytes) -> bytes:
        """Return the index in which the lock `key` is listed."""
        return self.of_slot(key_slot(key)) if self.clustered else self._only

    def of_slot(self, slot: int) -> bytes:
        """Return the index of a cluster's slot."""
        return b"holdfast_held:{%b}:%b" % (tags()[slot], self._prefix)

    def all(self) -> list[bytes]:
        """Return every index there may be."""
        if not self.clustered:
            return [self._only]
        return [self.of_slot(slot) for slot in range(REDIS_CLUSTER_HASH_SLOTS)]


@lru_cache(maxsize=1)
def tags() -> list[bytes]:
    """Return a hash tag for each slot of a cluster: the smallest number that falls into it (about 0.1 s)."""
    found: dict[int, bytes] = {}
    for number in count():
        tag = b"%d" % number
        found.setdefault(key_slot(tag), tag)
        if len(found) == REDIS_CLUSTER_HASH_SLOTS:
            return [found[slot] for slot in range(REDIS_CLUSTER_HASH_SLOTS)]
    raise AssertionError("unreachable")

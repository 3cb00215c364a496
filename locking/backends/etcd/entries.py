"""The layout on etcd, as pure functions: keys, values, and the numbers of leases.

<prefix><name>/<lease in hex>       value: JSON of owner, ttl, kind and permits
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from typing import Any

from locking.backends.queue.backend import QueueEntry


class Queue(list[QueueEntry]):
    """All who have a lock or want it, at one revision of the cluster."""

    revision = 0


def encoded(text: str) -> str:
    """Return a key or value as the gateway wants it."""
    return b64encode(text.encode()).decode()


def decoded(text: str) -> str:
    """Return what the gateway sent."""
    return b64decode(text).decode(errors="replace")


def below(prefix: str) -> dict[str, Any]:
    """Return the range of all keys that begin with `prefix`, the oldest first, as the gateway wants it."""
    raw = prefix.encode()
    end = raw[:-1] + bytes([raw[-1] + 1])  # no UTF-8 ends with 0xFF
    return {"key": encoded(prefix), "range_end": b64encode(end).decode()}


def lease_of(folder: str, owner: str) -> int:
    """Return the number of an owner's lease: always the same, so that a request may be repeated."""
    digest = hashlib.sha256(f"{folder}\0{owner}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 1) or 1


def escape(key: str) -> str:
    """Keep a name within its folder: a slash in it must not look like the end of the name.

    Example:
        >>> key_of(escape("order:42/a") + "%rw")
        'order:42/a'
    """
    return key.replace("%", "%25").replace("/", "%2F")


def value_of(owner: str, ttl: float, kind: str, permits: int) -> str:
    """Return the value of a contender's key, as the gateway wants it."""
    return encoded(json.dumps({"owner": owner, "ttl": ttl, "kind": kind, "permits": permits}))


def queue_of(answer: dict[str, Any], found: dict[str, Any]) -> Queue:
    """Return the queue of a range that was read, alone or as a part of a transaction's answer."""
    queue = Queue(map(_entry, found.get("kvs", ())))
    queue.revision = int(answer["header"]["revision"])
    return queue


def _entry(kv: dict[str, Any]) -> QueueEntry:
    node = decoded(kv["key"])
    try:
        fields = json.loads(decoded(kv.get("value", "")))
        owner, ttl = str(fields["owner"]), float(fields["ttl"])
        kind, permits = str(fields["kind"]), int(fields["permits"])
    except (ValueError, TypeError, KeyError):  # another client's: etcdctl's, Go's
        owner, ttl, kind, permits = node.rpartition("/")[2], None, "lock", 0
    created, lease = int(kv["create_revision"]), int(kv.get("lease", 0))
    return QueueEntry(node, created, kind, permits, owner, ttl, token=created, lease=lease)

"""The layout on ZooKeeper, as pure functions: a folder for each name, a node for each contender.

    <root>/<name>/_c_<uuid>-lock-<number>               Curator's InterProcessMutex
    <root>/<name>%rw/_c_<uuid>-__lock__<number>         kazoo's WriteLock
    <root>/<name>%rw/_c_<uuid>-__rlock__<number>        kazoo's ReadLock
    <root>/<name>%semaphore/_c_<uuid>-<permits>-lease-<number>

The uuid is made of the owner, so a creation whose reply was lost is found again. The data is JSON: owner,
ttl. Sources: Curator's LockInternals and its protection mode; kazoo.recipe.lock.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

from locking.backends.queue.backend import QueueEntry

_TAGS: Final = {"lock": "lock-", "read": "__rlock__", "write": "__lock__", "semaphore": "{permits}-lease-"}
_KINDS: Final = {"lock-": "lock", "__rlock__": "read", "__lock__": "write", "lease-": "semaphore"}
_NODE: Final = re.compile(
    r".*?(?:(?P<permits>\d+)-)?(?P<tag>lock-|__rlock__|__lock__|lease-)(?P<order>-?\d{10})", re.DOTALL
)
_FORBIDDEN: Final = re.compile(r"[^\x20-\uD7FF]|[/%\x7F-\x9F]")
"""What a node's name may not contain, or the encoding needs; beyond U+D7FF Java sees surrogates."""


def encode(key: str) -> str:
    """Return the name of a key's folder: readable where ZooKeeper allows it, percent-encoded elsewhere.

    Example:
        >>> encode("order:42/订单")
        'order:42%2F订单'
    """
    text = _FORBIDDEN.sub(lambda match: quote(match[0], safe=""), key)
    return text.replace(".", "%2E") if text in (".", "..", "zookeeper") else text


def guid(owner: str) -> str:
    """Return what begins the node of an owner, Curator's protection prefix."""
    return f"_c_{uuid.uuid5(uuid.NAMESPACE_OID, owner)}-"


def node_name(owner: str, kind: str, permits: int) -> str:
    """Return the name of an owner's node, without the number that the server puts after it."""
    return guid(owner) + _TAGS[kind].format(permits=permits)


def parse(folder: str, children: Iterable[str]) -> list[QueueEntry]:
    """Return the contenders of a folder in the order of their numbers; other children are passed over."""
    found = ((child, _NODE.fullmatch(child)) for child in children)
    line = [
        QueueEntry(
            f"{folder}/{child}",
            int(match["order"]),
            _KINDS[match["tag"]],
            int(match["permits"] or 0),
            owner=child,
        )
        for child, match in found
        if match is not None
    ]
    return sorted(line, key=lambda contender: contender.order)


def write_data(owner: str, ttl: float) -> bytes:
    """Return the data of a node."""
    return json.dumps({"owner": owner, "ttl": ttl}, separators=(",", ":")).encode()


def read_data(node: str, data: bytes) -> tuple[str, float | None]:
    """Return owner and ttl; another client's node is its own owner, without a ttl."""
    try:
        fields = json.loads(data)
        return str(fields["owner"]), float(fields["ttl"])
    except (ValueError, TypeError, KeyError):
        return node.rpartition("/")[2], None

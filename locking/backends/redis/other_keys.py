"""Finds keys that begin like a lock's but are none: acquiring such a name is an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from locking.backends.base import BaseLockBackend, Finding
from locking.backends.capabilities import backend_of
from locking.backends.redis.transport import RedisClient
from locking.backends.redis.verbs import escaped, scan
from locking.exceptions import BackendError

MOST_SCANS: Final = 20
"""Requests to a server, each of which passes a thousand of its keys."""

MOST: Final = 1000
"""Keys under the prefix that are looked at, each by a request."""

SHOWN: Final = 3


def find_other_keys(backend: BaseLockBackend, servers: Iterable[RedisClient]) -> list[Finding]:
    """Look for other keys under the alias's KEY_PREFIX; without one, every key of the server would be such.

    Raises:
        BackendError: a server does not answer, or this user may not look.
    """
    prefix = backend.settings.key_prefix
    if not prefix:
        return []
    keys = list(islice((key for server in servers for key in _keys_under(server, prefix)), MOST))
    others = [key for key in keys if _is_other(backend, key)]
    if not others:
        return [Finding("other keys", "ok", f"none of {len(keys)} keys under {prefix!r} is of another use")]
    some = ", ".join(others[:SHOWN]) + (" …" if len(others) > SHOWN else "")
    text = f"{len(others)} of {len(keys)} keys under {prefix!r} are no locks and can't be acquired: {some}"
    return [Finding("other keys", "warning", text, "Delete them, or give the locks another KEY_PREFIX.")]


def _keys_under(server: RedisClient, prefix: str) -> Iterator[str]:
    for keys in islice(scan(server, f"{escaped(prefix)}*"), MOST_SCANS):
        yield from (key.decode(errors="replace") for key in keys)


def _is_other(backend: BaseLockBackend, key: str) -> bool:
    """Whether the key is neither a lock nor a semaphore, whose count is kept in another type."""
    return all(_is_refused(kind, key) for kind in (backend, backend_of(backend, "semaphore")))


def _is_refused(kind: BaseLockBackend, key: str) -> bool:
    try:
        kind.holder(key)
    except BackendError as error:
        if "NOTALOCK" not in str(error):
            raise
        return True
    return False

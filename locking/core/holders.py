"""Who has a lock, in the words of an error: host, process, request or task, and the line that took it."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from typing import Any

from locking.backends.base import BaseLockBackend
from locking.core.lease import live_leases
from locking.exceptions import LockError
from locking.utils.call_site import activity_of, name_of

WORTH_A_QUESTION = 1.0
"""Seconds: who has waited for so long may ask once more; a process publishes what it has held for as long."""


def description(backend: BaseLockBackend, owner: str, *, ask: bool) -> str | None:
    """Return who the owner is, as far as it is known; with `ask` by what its process has published."""
    for lease in live_leases():
        if lease.owner == owner:
            context = lease.context()
            site = lease.site.describe() if lease.site is not None else None
            here = {"host": socket.gethostname(), "pid": os.getpid()}
            return _in_words(
                {**here, "thread": name_of(context), "doing": activity_of(context), "site": site}
            )
    if not ask:
        return None
    client = owner.split(":", 1)[0]
    with suppress(LockError, ValueError):
        if (told := backend.heartbeats([client]).get(client)) is not None:
            facts: dict[str, Any] = json.loads(told.text)
            return _in_words({**facts, **facts.get("holds", {}).get(owner, {})})
    return None


def _in_words(facts: dict[str, Any]) -> str:
    words = [f"process {facts.get('pid')} on {facts.get('host')}"]
    words += [str(facts[name]) for name in ("thread", "doing") if facts.get(name)]
    words += [f"at {facts['site']}"] if facts.get("site") else []
    return ", ".join(words)

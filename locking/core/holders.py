"""Who has a lock, in the words of an error: host, process, request or task, and the line that took it."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from typing import Any

from locking.backends.base import BaseLockBackend
from locking.backends.capabilities import Heartbeats
from locking.core.lease import SingleLease, live_leases
from locking.exceptions import LockError
from locking.utils.call_site import activity_of, name_of

WORTH_A_QUESTION = 1.0
"""Seconds: who has waited for so long may ask once more; a process publishes what it has held for as long."""


def description(backend: BaseLockBackend, owner: str, *, ask: bool) -> str | None:
    """Return who the owner is, as far as it is known; with `ask` by what its process has published."""
    facts: dict[str, Any] = {}
    for lease in live_leases():
        if lease.owner == owner:
            facts = {"host": socket.gethostname(), "pid": os.getpid(), **facts_of(lease)}
    if ask and not facts and isinstance(backend, Heartbeats):
        client = owner.split(":", 1)[0]
        with suppress(LockError, ValueError):
            if (published := backend.heartbeats([client]).get(client)) is not None:
                process = json.loads(published.text)
                facts = {**process, **process.get("holds", {}).get(owner, {})}
    if not facts:
        return None
    words = [f"process {facts.get('pid')} on {facts.get('host')}"]
    words += [str(facts[name]) for name in ("thread", "doing") if facts.get(name)]
    return ", ".join([*words, f"at {facts['site']}"] if facts.get("site") else words)


def facts_of(lease: SingleLease) -> dict[str, Any]:
    """Return who holds a lease of this process, and where it was taken."""
    context = lease.context()
    site = lease.site.describe() if lease.site is not None else None
    return {"thread": name_of(context), "doing": activity_of(context), "site": site}

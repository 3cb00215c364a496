"""What a running Redis server says about itself, and what of that endangers locks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.core.checks import CheckMessage, Error, Warning

FLOOR: Final = (6, 2)
"""The oldest version whose commands the scripts may use."""


def parse_info(reply: Any) -> dict[str, str]:
    """Return the fields of an INFO reply, which RESP3 may open with `txt:`."""
    lines = bytes(reply).decode(errors="replace").removeprefix("txt:").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def judge(info: Mapping[str, str], alias: str) -> list[CheckMessage]:
    """Return what is wrong with the server of `alias`, by its INFO."""
    return [*judge_version(info, alias), *judge_eviction(info, alias)]


def judge_version(info: Mapping[str, str], alias: str) -> list[CheckMessage]:
    """Return what is wrong with the server's version."""
    version = info.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) >= FLOOR:
        return []
    return [
        Error(
            f"The Redis server of LOCKING[{alias!r}] has version {version}, older than 6.2.",
            hint="Upgrade the server: the lock scripts use commands that it doesn't have.",
            id="locking.E102",
        )
    ]


def judge_eviction(info: Mapping[str, str], alias: str) -> list[CheckMessage]:
    """Return what is wrong with what the server does when its memory is full."""
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return []
    return [
        Warning(
            f"The Redis server of LOCKING[{alias!r}] may evict locks: its maxmemory-policy is {policy}.",
            hint="Set maxmemory-policy to noeviction, or give the locks a server of their own (LOCATION).",
            id="locking.W101",
        )
    ]

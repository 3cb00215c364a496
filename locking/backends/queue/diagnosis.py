"""What the servers of an ensemble or a cluster say about themselves, and what of that endangers locks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from django.core.checks import CheckMessage, Error, Warning

from locking.exceptions import BackendUnavailable


class Status(NamedTuple):
    """What one server says: its version, as its first two numbers, and whether it has a leader."""

    version: str
    has_leader: bool


def judge(
    engine: str, alias: str, floor: str, statuses: Mapping[str, Status | None], *, alone: bool
) -> Iterator[CheckMessage]:
    """Yield what is wrong with servers.

    Args:
        engine: its name.
        alias: in `LOCKING`, for messages.
        floor: the oldest version that has every request of the locks.
        statuses: by the server's address; None for a silent one.
        alone: there is one server.

    Raises:
        BackendUnavailable: none answers.
    """
    there = {where: status for where, status in statuses.items() if status is not None}
    if not there:
        raise BackendUnavailable(f"no {engine} server answers at {', '.join(statuses)}")
    if silent := [where for where, status in statuses.items() if status is None]:
        text = f"{len(silent)} {engine} servers of LOCKING[{alias!r}] don't answer: {', '.join(silent)}."
        hint = "Start them: locks stop when more than half of the servers are gone."
        yield Warning(text, hint=hint, id="locking.W103")
    if lost := [where for where, status in there.items() if not status.has_leader]:
        text = f"{engine} at {', '.join(lost)} (LOCKING[{alias!r}]) has no leader, and so no quorum."
        yield Error(text, hint="Start the other servers.", id="locking.E103")
    elif alone:
        text = f"{engine} of LOCKING[{alias!r}] has a single server: if it fails, no other takes over."
        yield Warning(text, hint="Run three or five servers.", id="locking.W102")
    oldest = min((status.version for status in there.values() if status.version), key=_numbers, default="")
    if oldest and _numbers(oldest) < _numbers(floor):
        text = f"A {engine} server of LOCKING[{alias!r}] has version {oldest}, older than {floor}."
        yield Error(text, hint="Upgrade the server: it lacks requests of the locks.", id="locking.E102")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("-")[0].split(".")[:2] if number.isdigit())

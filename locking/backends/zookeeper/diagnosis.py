"""What the servers of an ensemble say about themselves, and what of that endangers locks."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Final

from django.core.checks import CheckMessage, Error, Warning

from locking.exceptions import BackendUnavailable

FLOOR: Final = (3, 5)
"""The oldest version with the requests that the locks use (create with figures)."""


def examine(hosts: str, alias: str, timeout: float) -> list[CheckMessage]:
    """Ask each server of `alias` by the four-letter word `srvr`.

    Raises:
        BackendUnavailable: none answers.
    """
    statuses = {host: four_letters(host, b"srvr", timeout) for host in hosts.split(",")}
    if not any(statuses.values()):
        raise BackendUnavailable(f"no ZooKeeper server answers at {hosts}")
    return list(_judge({host: answer or "" for host, answer in statuses.items()}, alias))


def _judge(statuses: dict[str, str], alias: str) -> Iterator[CheckMessage]:
    if silent := [host for host, answer in statuses.items() if not answer]:
        text = f"{len(silent)} ZooKeeper servers of LOCKING[{alias!r}] don't answer: {', '.join(silent)}."
        hint = "Start them: an ensemble stops when more than half are gone."
        yield Warning(text, hint=hint, id="locking.W103")
    if lost := [host for host, answer in statuses.items() if "not currently serving" in answer]:
        text = f"ZooKeeper at {', '.join(lost)} (LOCKING[{alias!r}]) is running without a quorum."
        yield Error(text, hint="Start the other servers of the ensemble.", id="locking.E103")
    elif any(_field(answer, "Mode") == "standalone" for answer in statuses.values()):
        text = f"ZooKeeper of LOCKING[{alias!r}] has a single server: if it fails, no other takes over."
        yield Warning(text, hint="Run an ensemble of three or five servers.", id="locking.W102")
    if old := [version for answer in statuses.values() if (version := _version(answer)) and version < FLOOR]:
        oldest = ".".join(map(str, min(old)))
        text = f"A ZooKeeper server of LOCKING[{alias!r}] has version {oldest}, older than 3.5."
        yield Error(text, hint="Upgrade the server: it lacks requests that the locks use.", id="locking.E102")


def four_letters(host: str, word: bytes, timeout: float) -> str | None:
    """Return a server's answer to one of its four-letter words, or None."""
    name, _, port = host.rpartition(":")
    try:
        with socket.create_connection((name.strip("[]"), int(port)), timeout=timeout) as connection:
            connection.sendall(word)
            return b"".join(iter(lambda: connection.recv(4096), b"")).decode(errors="replace")
    except (OSError, ValueError):
        return None


def _version(answer: str) -> tuple[int, ...]:
    numbers = _field(answer, "Zookeeper version").split("-")[0].split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdigit())


def _field(answer: str, name: str) -> str:
    lines = (line.partition(":") for line in answer.splitlines())
    return next((value.strip() for key, _, value in lines if key == name), "")

"""What the servers of an ensemble say about themselves, by ZooKeeper's four-letter words."""

from __future__ import annotations

import socket
from typing import Final

from django.core.checks import CheckMessage

from locking.backends.queue.diagnosis import Status, judge

FLOOR: Final = "3.5"
"""The oldest version with the requests that the locks use (create with figures)."""


def examine(hosts: str, alias: str, timeout: float) -> list[CheckMessage]:
    """Ask each server of `alias`; BackendUnavailable: none answers."""
    answers = {host: four_letters(host, b"srvr", timeout) for host in hosts.split(",")}
    statuses = {
        host: Status(_field(answer, "Zookeeper version"), "not currently serving" not in answer)
        if answer
        else None
        for host, answer in answers.items()
    }
    alone = any(_field(answer or "", "Mode") == "standalone" for answer in answers.values())
    return list(judge("ZooKeeper", alias, FLOOR, statuses, alone=alone))


def four_letters(host: str, word: bytes, timeout: float) -> str | None:
    """Return a server's answer to one of its four-letter words, or None."""
    name, _, port = host.rpartition(":")
    try:
        with socket.create_connection((name.strip("[]"), int(port)), timeout=timeout) as connection:
            connection.sendall(word)
            return b"".join(iter(lambda: connection.recv(4096), b"")).decode(errors="replace")
    except (OSError, ValueError):
        return None


def _field(answer: str, name: str) -> str:
    lines = (line.partition(":") for line in answer.splitlines())
    return next((value.strip() for key, _, value in lines if key == name), "")

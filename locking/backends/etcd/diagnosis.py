"""What the members of a cluster say about themselves, and what of that endangers locks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import requests
from django.core.checks import CheckMessage, Error, Warning
from etcd3gw.exceptions import Etcd3Exception

from locking.backends.etcd.client import Client
from locking.exceptions import BackendUnavailable

FLOOR: Final = (3, 4)
"""The oldest version whose gateway speaks `/v3/`."""


def examine(client: Client, alias: str) -> list[CheckMessage]:
    """Ask each member of `alias` for its status.

    Raises:
        BackendUnavailable: none answers.
    """
    statuses = {url: _status(client, url) for url in client.urls}
    if not any(statuses.values()):
        raise BackendUnavailable(f"no etcd member answers at {', '.join(client.urls)}")
    return list(_judge(statuses, client, alias))


def _judge(statuses: dict[str, dict[str, Any]], client: Client, alias: str) -> Iterator[CheckMessage]:
    if silent := [url for url, answer in statuses.items() if not answer]:
        text = f"{len(silent)} of the etcd members of LOCKING[{alias!r}] don't answer: {', '.join(silent)}."
        yield Warning(text, hint="Start them: a cluster stops when half or more are gone.", id="locking.W103")
    answers = {url: answer for url, answer in statuses.items() if answer}
    if lost := [url for url, answer in answers.items() if answer.get("leader", "0") == "0"]:
        text = f"etcd at {', '.join(lost)} (LOCKING[{alias!r}]) has no leader."
        yield Error(text, hint="Start the other members of the cluster.", id="locking.E103")
    versions = [str(answer.get("version", "0")) for answer in answers.values()]
    if old := [version for version in versions if _numbers(version) < FLOOR]:
        text = f"An etcd member of LOCKING[{alias!r}] has version {old[0]}, older than 3.4."
        yield Error(text, hint="Upgrade the member: its gateway speaks another dialect.", id="locking.E102")
    if len(client.ask("/cluster/member/list").get("members", ())) <= 1:
        text = f"etcd of LOCKING[{alias!r}] has a single server: if it fails, no other takes over."
        yield Warning(text, hint="Run a cluster of three or five members.", id="locking.W102")


def _status(client: Client, url: str) -> dict[str, Any]:
    """Return what a member says; nothing when it is silent."""
    try:
        return dict(client.member(url).status())
    except (Etcd3Exception, requests.RequestException):
        return {}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())

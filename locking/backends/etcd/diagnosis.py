"""What the members of a cluster say about themselves, and what of that endangers locks."""

from __future__ import annotations

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
    told = {url: _status(client, url) for url in client.urls}
    answers = {url: answer for url, answer in told.items() if answer is not None}
    if not answers:
        raise BackendUnavailable(f"no etcd member answers at {', '.join(client.urls)}")
    silent = [url for url in client.urls if url not in answers]
    return [
        *_judge_silent(silent, alias),
        *_judge_leader(answers, alias),
        *_judge_versions(answers, alias),
        *_judge_size(client, alias),
    ]


def _status(client: Client, url: str) -> dict[str, Any] | None:
    try:
        return dict(client.member(url).status())
    except (Etcd3Exception, requests.RequestException):
        return None


def _judge_silent(silent: list[str], alias: str) -> list[CheckMessage]:
    if not silent:
        return []
    text = f"{len(silent)} of the etcd members of LOCKING[{alias!r}] don't answer: {', '.join(silent)}."
    hint = "Start them: a cluster stops when half or more are gone."
    return [Warning(text, hint=hint, id="locking.W103")]


def _judge_leader(answers: dict[str, dict[str, Any]], alias: str) -> list[CheckMessage]:
    lost = [url for url, answer in answers.items() if answer.get("leader", "0") == "0"]
    if not lost:
        return []
    text = f"etcd at {', '.join(lost)} (LOCKING[{alias!r}]) has no leader."
    return [Error(text, hint="Start the other members of the cluster.", id="locking.E103")]


def _judge_versions(answers: dict[str, dict[str, Any]], alias: str) -> list[CheckMessage]:
    versions = [str(answer.get("version", "0")) for answer in answers.values()]
    old = [version for version in versions if _numbers(version) < FLOOR]
    if not old:
        return []
    text = f"An etcd member of LOCKING[{alias!r}] has version {old[0]}, older than 3.4."
    return [Error(text, hint="Upgrade the member: its gateway speaks another dialect.", id="locking.E102")]


def _judge_size(client: Client, alias: str) -> list[CheckMessage]:
    """Warn of a cluster of one."""
    if len(client.ask("/cluster/member/list").get("members", ())) > 1:
        return []
    return [
        Warning(
            f"etcd of LOCKING[{alias!r}] has a single server: if it fails, no other takes over.",
            hint="Run a cluster of three or five members.",
            id="locking.W102",
        )
    ]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())

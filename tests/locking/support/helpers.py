"""What the tests of locks share: a second place to look from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from django.contrib.auth.models import Group
from django.db import connections

from locking.backends.capabilities import releaser_of
from locking.backends.redis.scripts import Request
from locking.core.handler import locks
from locking.exceptions import BackendUnavailable
from locking.inspection import deadlocks, heartbeat
from locking.inspection.heartbeat import PUBLISH_AFTER
from locking.signals import lock_force_released, notify

T = TypeVar("T")


def parts_of(request: Request) -> list[bytes]:
    """Return the parts of a packed request, for a plain client to send."""
    parts, rest = [], request.by_source.split(b"\r\n", 1)[1]
    while rest:
        size, rest = rest.split(b"\r\n", 1)
        length = int(size[1:])
        parts.append(rest[:length])
        rest = rest[length + 2 :]
    return parts


def is_answered(step: Callable[[], object]) -> bool:
    """Take a step; False while the backend doesn't answer."""
    try:
        step()
    except BackendUnavailable:
        return False
    return True


def elsewhere(function: Callable[[], T]) -> T:
    """Return what `function` gives in another thread: on other connections, and holding nothing."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((True, function()))
        except BaseException as error:
            outcome.append((False, error))
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(timeout=30)
    succeeded, value = outcome[0]
    if not succeeded:
        raise value
    return value  # type: ignore[no-any-return]


def take_from(name: str, *, owner: str) -> bool:
    """End the hold of `owner`, as a redelivered task does to the delivery before; no audit, no database."""
    backend = releaser_of(locks["default"], "lock")
    broken = backend.force_release(backend.key(name), owner)
    if broken:
        where = {"name": name, "key": backend.key(name), "backend": "default"}
        notify(lock_force_released, outcome="force_released", owner=owner, **where)
    return broken


@contextmanager
def publishing() -> Iterator[None]:
    """Have this process publish its heartbeats and waits, as every process does outside the tests."""
    heartbeat.reporter.enabled = True
    try:
        yield
    finally:
        heartbeat.reporter.reset()
        heartbeat.reporter.enabled = False


def look_for_deadlocks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have waiters publish their waits and look for a circle ten times sooner."""
    for module in (deadlocks, heartbeat):
        monkeypatch.setattr(module, "PUBLISH_AFTER", PUBLISH_AFTER / 10)
    for interval in ("FIRST_LOOK", "LOOK_EVERY"):
        monkeypatch.setattr(deadlocks, interval, getattr(deadlocks, interval) / 10)


def committed() -> list[str]:
    """The names of the groups that another connection sees."""
    return elsewhere(lambda: sorted(Group.objects.values_list("name", flat=True)))

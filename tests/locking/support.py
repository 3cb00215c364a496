"""What the tests of locks share: a second place to look from."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from django.contrib.auth.models import Group
from django.db import connections

T = TypeVar("T")


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


def committed() -> list[str]:
    """The names of the groups that another connection sees."""
    return elsewhere(lambda: sorted(Group.objects.values_list("name", flat=True)))

"""The base of every part of the contract: the backend under test, and contenders for the same lock."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar
from unittest import mock

import pytest
from django.test.utils import override_settings

from locking.backends.base import AsyncWaiter, BaseLockBackend, Outcome, Waiter
from locking.core.handler import locks
from locking.exceptions import LockLost

T = TypeVar("T")


class ContractBase:
    """Attributes that a subclass sets."""

    settings: ClassVar[Mapping[str, Any]] = {}
    """The backend's entry in `LOCKING`."""
    unreachable: ClassVar[Mapping[str, Any] | None] = None
    """An entry whose server is not there; None for a backend that needs no server."""
    shortest_ttl: ClassVar[float] = 0.15
    """Seconds of the shortest lease that the engine keeps exactly."""
    patience: ClassVar[float] = 25.0
    """Seconds within which anything awaited must have happened, on a slow machine; below the 30 s after which
    a lease of these tests would end by itself."""

    @pytest.fixture
    def backend_settings(self) -> Mapping[str, Any]:
        """The entry under test; override the fixture to run the suite over several."""
        return self.settings

    @pytest.fixture(autouse=True)
    def backend(self, backend_settings: Mapping[str, Any]) -> Iterator[BaseLockBackend]:
        """Make the backend under test the default one."""
        with override_settings(LOCKING={"default": dict(backend_settings)}):
            yield locks["default"]

    @pytest.fixture
    def name(self) -> str:
        """A name that no other test uses, so that the engine needn't be emptied."""
        return f"contract:{secrets.token_hex(8)}"


def at_leisure(attempt: Callable[[float], None], ttl: float) -> None:
    """Call `attempt(ttl)`; if the lease was lost, because the machine was too slow, again with a longer one.

    For what must happen within a short lease. A backend that loses every lease fails at the longest.
    """
    for _ in range(3):
        try:
            return attempt(ttl)
        except LockLost:
            ttl *= 4
    return attempt(ttl)


def elsewhere(step: Callable[[], T]) -> T:
    """Run `step` in a thread of its own and return, or raise, what it does."""
    return begin(step).result(timeout=60)


def begin(step: Callable[[], T]) -> Future[T]:
    """Start `step` in a thread of its own."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(step())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def until(condition: Callable[[], object], within: float) -> None:
    """Wait until `condition()` is true; fail when that takes longer than `within` seconds."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not so within {within:g} s"
        time.sleep(0.002)  # asks again until it is so


class Waiters:
    """Who has begun to wait: places of the backend's queue that were asked to sleep."""

    def __init__(self) -> None:
        self.places: dict[int, object] = {}  # kept alive, so that no id is given twice

    def sync(self, make: Callable[..., Waiter]) -> Callable[..., Waiter]:
        """Return `make` with places that report here."""

        def waiter(*args: Any, **kwargs: Any) -> Waiter:
            made = make(*args, **kwargs)
            wait = made.wait

            def reporting(timeout: float) -> Outcome:
                self.places[id(made)] = made
                return wait(timeout)

            made.wait = reporting  # type: ignore[method-assign]
            return made

        return waiter

    def aio(self, make: Callable[..., AsyncWaiter]) -> Callable[..., AsyncWaiter]:
        """Return `make` with places that report here."""

        def waiter(*args: Any, **kwargs: Any) -> AsyncWaiter:
            made = make(*args, **kwargs)
            wait = made.wait

            async def reporting(timeout: float) -> Outcome:
                self.places[id(made)] = made
                return await wait(timeout)

            made.wait = reporting  # type: ignore[method-assign]
            return made

        return waiter

    def number(self) -> int:
        """Return how many have begun to wait."""
        return len(self.places)

    def are(self, number: int) -> bool:
        """Return whether as many have begun to wait."""
        return self.number() == number


@contextmanager
def counted_waiters(backend: BaseLockBackend) -> Iterator[Waiters]:
    """Count those who wait, whatever the engine: a test goes on when they do, and never guesses."""
    waiters = Waiters()
    with (
        mock.patch.object(backend, "waiter", waiters.sync(backend.waiter)),
        mock.patch.object(backend, "async_waiter", waiters.aio(backend.async_waiter)),
    ):
        yield waiters

"""A waiting thread and a waiting task, for engines whose steps block and which wake a waiter by callback."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from contextlib import suppress

from locking.backends.base import AsyncWaiter, Outcome, Waiter


class WaitingSteps(ABC):
    """What a thread and a task do alike; each step may block."""

    @abstractmethod
    def ask(self, *, queue: bool) -> Outcome:
        """Acquire the lock if it is this waiter's turn; else, with `queue`, enqueue."""

    @abstractmethod
    def give_up(self) -> None:
        """Leave the queue."""

    @abstractmethod
    def pause(self) -> float:
        """Return the seconds that a waiter may sleep at most before it must ask again."""

    @abstractmethod
    def wake(self) -> None:
        """Have the waiter ask again; called from any thread."""


class WokenThread(WaitingSteps, Waiter):
    """A thread that waits: it sleeps on its own event."""

    def __init__(self) -> None:
        self._woken = threading.Event()

    def wake(self) -> None:
        self._woken.set()

    def try_acquire(self, *, queue: bool) -> Outcome:
        return self.ask(queue=queue)

    def wait(self, timeout: float) -> Outcome:
        self._woken.wait(min(timeout, self.pause()))
        self._woken.clear()
        return self.ask(queue=True)

    def leave(self) -> None:
        self.give_up()


class WokenTask(WaitingSteps, AsyncWaiter):
    """A task that waits: its requests run in threads, its waiting in the event loop."""

    def __init__(self) -> None:
        self._woken, self._loop = asyncio.Event(), asyncio.get_running_loop()

    def wake(self) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._woken.set)

    async def try_acquire(self, *, queue: bool) -> Outcome:
        return await asyncio.to_thread(self.ask, queue=queue)

    async def wait(self, timeout: float) -> Outcome:
        with suppress(TimeoutError):
            # Not wait_for: before Python 3.12 it swallows a cancellation that comes with the wake-up.
            async with asyncio.timeout(min(timeout, self.pause())):
                await self._woken.wait()
        self._woken.clear()
        return await self.try_acquire(queue=True)

    async def leave(self) -> None:
        await asyncio.to_thread(self.give_up)

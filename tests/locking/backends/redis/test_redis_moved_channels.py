"""A cluster's slot moves between a waiter's question and its subscription: the waiter follows it."""

from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import MovedError

from locking import BackendError
from locking.backends.base import Busy
from locking.backends.redis.scripts import NAMED, Index
from locking.backends.redis.transport import ThreadSubscription, run
from locking.backends.redis.waiter import AnnouncedWaiter
from locking.utils.ownership import new_owner

HELD = [60_000, new_owner().encode(), 0, 0]


class Subscribed(ThreadSubscription):
    """A subscription to a server that may have lost the slot, and then refuses its channel."""

    def __init__(self, server: Any, has_slot: bool) -> None:
        self.server, self.channel, self._extra = server, "own", None
        self._has_slot, self.is_closed = has_slot, False
        self.connection: Any = SimpleNamespace(disconnect=self.close)

    def change(self, verb: str, channel: str) -> None:
        if verb == "SSUBSCRIBE" and not self._has_slot:
            raise MovedError("12182 127.0.0.1:7001")

    def close(self) -> None:
        """Note that it is closed."""
        self.is_closed = True


class MovingServer:
    """Opens subscriptions, of which the first are to a server that has lost the slot."""

    verbs = ("SUBSCRIBE", "SSUBSCRIBE")

    def __init__(self, late: int) -> None:
        self.late, self.opened = late, list[Subscribed]()

    def idle_subscription(self, owner: str) -> None:
        """There is none."""

    async def subscribe(self, owner: str) -> Subscribed:
        """Open a new one."""
        self.opened.append(Subscribed(self, len(self.opened) >= self.late))
        return self.opened[-1]


def waiter_of(late):
    """A waiter for a write lock that is held, and its subscriptions."""
    server = MovingServer(late)

    async def deliver(request, replica_ack=None):
        return HELD

    calls: Any = SimpleNamespace(
        deliver=deliver, server_of=lambda key: server, replica_ack=None, has_failover=True, alias="default"
    )
    return AnnouncedWaiter(NAMED["write"](Index()), calls, "a", new_owner(), 60.0, False), server


def test_a_waiter_follows_its_lock_to_another_server():
    """A channel that the server refuses, because its slot has moved, is listened to where the slot is."""
    waiter, server = waiter_of(late=1)
    assert isinstance(run(waiter.try_acquire(queue=True)), Busy)
    assert [each.is_closed for each in server.opened] == [True, False]


def test_a_slot_that_does_not_settle_keeps_no_waiter_busy():
    """After a few tries the waiter sleeps, without a subscription, and asks again then."""
    waiter, server = waiter_of(late=1000)
    assert isinstance(run(waiter.try_acquire(queue=True)), Busy)
    assert len(server.opened) == 4
    assert waiter._subscription is None


def test_a_waiter_that_takes_a_move_for_a_refusal_is_found_out(monkeypatch):
    """The mutant ends the wait with an error."""
    waiter, server = waiter_of(late=1)
    monkeypatch.setattr(
        waiter, "_prepared", lambda: waiter._listens(server, waiter._kind.channel("a", waiter._owner))
    )
    with pytest.raises(BackendError, match="12182"):
        run(waiter.try_acquire(queue=True))

"""How to wait for a lock: ask, enqueue, receive the messages that wake, ask again. See `protocol`.

The ordinary lock is handed over: its release script grants it to the first waiter of the queue that listens
to its own channel, and says so there. The other kinds are announced, and the first that asks has them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from redis.exceptions import MovedError, RedisError

from locking.backends.base import AsyncWaiter, Busy, Grant, Outcome
from locking.backends.redis import protocol
from locking.backends.redis.protocol import UNREACHABLE
from locking.backends.redis.scripts import (
    Asked,
    Kind,
    Ordinary,
    Request,
    Resent,
    new_tuple,
    place_in_queue,
    read_outcome,
    read_wakeup,
)
from locking.exceptions import BackendError, BackendUnavailable, LockError
from locking.utils.clock import now

NO_OWNER: Final = "-"  # never holds anything
RECOVERY_PAUSE: Final = 0.1  # seconds between questions while another server is to take over
PREPARATIONS: Final = 4  # resubscriptions before the waiter sleeps: a moving slot must not keep it busy


class AnnouncedWaiter(AsyncWaiter):
    """Waits for a lock that is announced: it hears the kind's channel and asks after each message."""

    _enqueued = False

    def __init__(
        self, kind: Kind, calls: protocol.Calls, key: str, owner: str, ttl: float, fenced: bool
    ) -> None:
        self._kind, self._calls = kind, calls
        self._key, self._owner, self._ttl, self._fenced = key, owner, ttl, fenced
        self._subscription: protocol.Subscription | None = None
        self._asked, self._wants_channel = Asked(0.0), False
        self._unanswered = False  # a request of ours may be served late: see `Resent`

    def _request(self, queue: bool) -> Request:
        """Return the request that takes the lock or, with `queue`, enqueues."""
        self._enqueued |= queue
        return self._kind.acquire(self._key, self._owner, self._ttl, keep=self._fenced, queue=queue)

    def _channel(self) -> str | None:
        """Return the channel that wakes this waiter beside its own, if there is one."""
        return self._kind.channel(self._key, self._owner)

    def _meaning(self, message: protocol.Message) -> Grant | bool:
        """Return the handoff that a message carries, True for *ask again*, False for nothing."""
        assert self._subscription is not None
        return message.channel not in (b"", self._subscription.channel.encode())

    async def _dequeue(self) -> bool:
        """Leave the queue, and release what was granted; False: it isn't known whether that worked.

        Redisson's own queue drops a silent waiter by itself.
        """
        request = self._kind.leave(self._key, self._owner) if self._enqueued else None
        return True if request is None else await self._is_served(request)

    async def try_acquire(self, *, queue: bool) -> Outcome:
        """See the base class; NotReplicated: too few replicas have it. What was new was given back."""
        try:
            for left in range(PREPARATIONS if queue else 0, -1, -1):
                sent, unanswered = now(), self._unanswered
                self._unanswered = True  # until there is an answer: whatever interrupts it, it may be served
                reply = await self._calls.deliver(self._request(queue), self._calls.replica_ack)
                self._unanswered = unanswered
                if isinstance(reply, int) and reply > 0 and self._subscription is None and not unanswered:
                    return new_tuple(Grant, (reply, sent, False, True))  # nearly always
                if isinstance(reply, Resent):
                    self._unanswered, reply = True, reply.reply
                outcome, self._wants_channel, self._asked = read_outcome(reply, sent)
                if isinstance(outcome, Grant):
                    return await self._granted(outcome)
                # Ask again after anything changed in what it listens to: the lock may be free by then.
                if not left or not await self._prepared():
                    break
            return outcome
        except (RedisError, OSError, BackendError) as error:
            if isinstance(error, protocol.NeverSent):
                self._unanswered = unanswered
            return await self._failed(error, queue)

    async def _granted(self, grant: Grant) -> Grant:
        """End the wait."""
        await self._unsubscribe()
        return grant._replace(resent=True) if self._unanswered else grant

    async def _failed(self, error: Exception, queue: bool) -> Outcome:
        """An outage of servers that have a failover isn't the end of the wait."""
        if isinstance(error, protocol.NotReplicated):
            if error.is_new:
                with suppress(LockError):  # the caller releases what is left
                    await self._calls.call(self._kind.release(self._key, self._owner))
            raise error
        failure = error if isinstance(error, BackendError) else protocol.translated(error, self._calls.alias)
        if queue and self._calls.has_failover and isinstance(failure, BackendUnavailable):
            self._close()
            return Busy(outage=failure)
        if failure is error:
            raise error
        raise failure from error

    async def _prepared(self) -> bool:
        """Listen where the lock is; True when anything changed."""
        server = self._calls.server_of(self._key)
        assert server is not None, "the lock's server has just answered"
        try:
            return await self._listens(server, self._channel())
        except MovedError:  # its slot has gone since the question; the next one finds where
            await self._abandon()
            return True

    async def _listens(self, server: protocol.Server, channel: str | None) -> bool:
        subscription = self._subscription
        if subscription is not None and subscription.server is server:
            with suppress(*UNREACHABLE):  # it died with its server, or while it was idle
                return channel is not None and await subscription.listen(channel)
        await self._abandon()
        while True:
            idle = server.idle_subscription(self._owner)
            self._subscription = subscription = idle or await server.subscribe(self._owner)
            server.has_waiters = True
            try:
                if channel is not None:
                    await subscription.listen(channel)
                return True
            except UNREACHABLE:
                if idle is None:
                    raise
                self._close()

    async def wait(self, timeout: float) -> Outcome:
        if self._subscription is None:  # the server was away
            await self._calls.sleep(min(timeout, RECOVERY_PAUSE))
            return await self.try_acquire(queue=True)
        heard: Grant | bool = False
        try:
            heard = await self._received(self._subscription, now() + timeout)
        except (RedisError, OSError):
            await self._abandon()
        if isinstance(heard, Grant):
            return await self._granted(heard)
        return await self.try_acquire(queue=True)

    async def _received(self, subscription: protocol.Subscription, deadline: float) -> Grant | bool:
        """Return the handoff, True when a message says to ask, or False when the time is over."""
        while (left := deadline - now()) > 0:
            message = await subscription.receive(left)
            meaning = message is not None and self._meaning(message)
            if isinstance(meaning, Grant) and self._calls.replica_ack is None:
                return meaning
            if meaning:
                return True
        return False

    async def leave(self) -> None:
        """See the base class; unsettled: a request of this waiter may yet be served, and take the lock."""
        is_dequeued = False
        try:
            is_dequeued = await self._dequeue()
        finally:
            if not is_dequeued:  # a place that can't be withdrawn must at least not be heard
                self._close()
        await self._unsubscribe()
        self.unsettled = self._unanswered or not is_dequeued

    async def _is_served(self, request: Request) -> bool:
        try:
            await self._calls.call(request)
        except LockError:
            return False
        return True

    async def _unsubscribe(self) -> None:
        if self._unanswered:  # a late request may enqueue again: there must be no listener for it then
            self._close()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.give_back()

    async def _abandon(self) -> None:
        """Start over: a waiter whose channel has no subscriber is passed over."""
        self._close()

    def _close(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.close()


class HandoffWaiter(AnnouncedWaiter):
    """Waits for the ordinary lock.

    Its first wait asks without a place in the queue, subscribes, then asks again with one: a caller that
    never waits needs no second connection; one that waits again has it already and asks once.
    """

    _kind: Ordinary

    def _request(self, queue: bool) -> Request:
        if queue and self._subscription is None and (server := self._calls.server_of(self._key)):
            self._subscription = server.idle_subscription(self._owner)
        entry = b"" if self._subscription is None else self._entry()
        return self._kind.acquire(self._key, self._owner, self._ttl, keep=self._fenced, entry=entry)

    def _entry(self) -> bytes:
        assert self._subscription is not None
        channel = self._subscription.channel
        return place_in_queue(self._owner, self._ttl, keep=self._fenced, channel=channel)

    def _channel(self) -> str | None:
        """Return the lock's own channel, for a holder who wakes no other: a client of another language."""
        return super()._channel() if self._wants_channel else None

    def _meaning(self, message: protocol.Message) -> Grant | bool:
        assert self._subscription is not None
        if message.channel == self._subscription.channel.encode():
            return read_wakeup(message.payload, self._owner, self._asked)
        return bool(message.channel)

    async def _dequeue(self) -> bool:
        return self._subscription is None or await self._is_served(self._release_by(self._owner))

    async def _abandon(self) -> None:
        """See the base class; ends no hold, because it may be served after this owner's next grant."""
        if self._subscription is not None:
            await self._is_served(self._release_by(NO_OWNER))
            self._close()

    def _release_by(self, owner: str) -> Request:
        """Return the request that takes this waiter's place out of the queue, and ends a hold of `owner`."""
        return self._kind.release(self._key, owner, entry=self._entry())

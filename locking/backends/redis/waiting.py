"""How a waiting thread is woken: by a message on a channel of its own, read from a socket of its own.

A socket a waiter, not one a process: a thread that reads its own socket is woken by the kernel, without a hop
through a dispatching thread, and when the process dies the server sees it and passes the dead waiter over.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from redis.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from locking.backends.base import Busy, Grant, Outcome, Place
from locking.backends.redis.scripts import (
    Asked,
    Request,
    acquire_request,
    lock_channel,
    place_in_queue,
    read_outcome,
    read_wakeup,
    release_request,
)
from locking.backends.redis.wire import IDLE_SOCKETS, Calls, TooFewCopies, Wire
from locking.clock import now
from locking.exceptions import BackendUnavailable, LockError

OPPOSITES = {"SUBSCRIBE": "UNSUBSCRIBE", "SSUBSCRIBE": "SUNSUBSCRIBE"}

EarsOf = Callable[[str], "Ears"]
"""From a key to the ears on the server that owns it: only there a script can tell who listens."""

RECOVERY_PAUSE = 0.1
"""Seconds between a waiter's questions while its server is away and another is to take over."""


def is_unknown_command(error: ResponseError) -> bool:
    """Whether a server that is too old for sharded channels, Redis 6, says so."""
    return "unknown command" in str(error)


class Ear:
    """A socket that is subscribed to a channel of its own."""

    def __init__(self, connection: AbstractConnection, home: Ears) -> None:
        self.home = home
        self.channel = f"holdfast_lock_wake:{secrets.token_hex(8)}"
        self._connection = connection
        self._extra: str | None = None
        self._connection.connect()
        self._send("SUBSCRIBE", self.channel)
        self._read_acknowledgement()

    def _send(self, *command: str) -> None:
        self._connection.send_command(*command, check_health=False)

    def _read(self, timeout: float) -> Any:
        return self._connection.read_response(
            disable_decoding=True, timeout=timeout, disconnect_on_error=False, push_request=True
        )

    def _read_acknowledgement(self) -> None:
        while not self._read(5.0)[0].endswith(b"subscribe"):
            pass  # an older wake-up that nobody waits for any more

    def listen_to(self, channel: str) -> None:
        """Hear `channel` as well, from before this returns."""
        if self._extra is None:
            self._extra = channel
            for verb in self.home.verbs:
                self._subscribe(verb, channel)

    def _subscribe(self, verb: str, channel: str) -> None:
        self._send(verb, channel)
        try:
            self._read_acknowledgement()
        except ResponseError as error:
            if not is_unknown_command(error):
                raise
            self.home.verbs = ("SUBSCRIBE",)

    def listen_to_own_only(self) -> None:
        """Hear only the own channel again."""
        if self._extra is not None:
            for verb in self.home.verbs:
                self._send(OPPOSITES[verb], self._extra)
                self._read_acknowledgement()
            self._extra = None

    def hear(self, timeout: float) -> tuple[bytes, bytes] | None:
        """Return the next message as channel and payload, or None after `timeout` seconds."""
        try:
            kind, channel, payload = self._read(max(timeout, 0.001))
        except RedisTimeoutError:
            return None
        # A slot that moves to another node ends its subscriptions here: that is a reason to ask again, too.
        return (channel, payload) if kind in (b"message", b"smessage", b"sunsubscribe") else (b"", b"")

    def close(self) -> None:
        """Close the socket: the scripts then pass over whoever stands in a queue with its channel."""
        self._connection.disconnect()


class Ears:
    """The sockets to one server that no thread waits on at the moment, for the next waiter."""

    def __init__(self, wire: Wire, verbs: tuple[str, ...] = ("SUBSCRIBE",)) -> None:
        self._wire = wire
        self.verbs = verbs
        """How to hear Redisson's announcements: a cluster has two ways."""
        self._idle: deque[Ear] = deque()
        IDLE_SOCKETS.add(self)

    def forget(self) -> None:
        """Drop the idle ones; see `wire.KeepsSockets`."""
        self._idle = deque()

    def idle(self) -> Ear | None:
        """Return an ear at no cost, if there is one."""
        if not self._idle:  # nearly always; an exception costs more than a look
            return None
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def open(self) -> Ear:
        """Return a new ear."""
        try:
            return Ear(self._wire.connection(), self)
        except (RedisError, OSError) as error:
            raise BackendUnavailable(f"can't subscribe to wake-ups: {error}") from error

    def give_back(self, ear: Ear) -> None:
        """Keep `ear` for the next waiter, deaf to what it heard beside its own channel."""
        try:
            ear.listen_to_own_only()
        except (RedisError, OSError):
            ear.close()
        else:
            self._idle.append(ear)

    def close(self) -> None:
        """Close the idle ones."""
        while ear := self.idle():
            ear.close()


class RedisPlace(Place):
    """A thread's place in the queue of one lock."""

    def __init__(self, wire: Calls, ears_of: EarsOf, key: str, owner: str, ttl: float, fenced: bool) -> None:
        self._wire, self._ears_of = wire, ears_of
        self._key, self._owner, self._ttl, self._fenced = key, owner, ttl, fenced
        self._ear: Ear | None = None
        self._place = b""
        self._asked = Asked(0.0)

    def try_acquire(self, *, queue: bool) -> Outcome:
        """See the base class.

        The first waiting of a thread asks without a place, then opens its ear, then asks again with one:
        whoever never waits needs no second socket, and whoever waits again has it already and asks once.
        """
        try:
            return self._try(queue)
        except TooFewCopies:
            raise
        except BackendUnavailable as error:
            if not (queue and self._wire.recovers):
                raise
            self._close_ear()
            return Busy(outage=error)

    def _try(self, queue: bool) -> Outcome:
        if queue and self._ear is None and (ear := self._ears_of(self._key).idle()):
            self._stand(ear)
        outcome = self._ask()
        if queue and self._ear is None and isinstance(outcome, Busy):
            self._stand(self._ears_of(self._key).open())
            outcome = self._ask()
        return outcome

    def _stand(self, ear: Ear) -> None:
        self._ear = ear
        self._place = place_in_queue(self._owner, self._ttl, keep=self._fenced, channel=ear.channel)

    def _ask(self) -> Outcome:
        sent = now()
        request = acquire_request(
            self._key, self._owner, self._ttl, keep=self._fenced, place=self._place, index=self._wire.index
        )
        reply = self._wire.acquire(request, self._undo)
        if isinstance(reply, int):
            grant = Grant(reply, sent)
            return grant if self._ear is None else self._done(grant)
        outcome, listen, self._asked = read_outcome(reply, sent)
        if self._ear is not None and self._ear.home is not self._ears_of(self._key):
            return self._move()
        if listen and self._ear is not None and self._ear._extra is None:
            return self._listen_and_ask(self._ear)
        return outcome

    def _undo(self, place: bytes = b"") -> Request:
        return release_request(self._key, self._owner, index=self._wire.index, place=place)

    def _move(self) -> Outcome:
        """The lock lives on another server by now: a place with an ear elsewhere would be passed over."""
        self._lose_ear()
        return self._try(queue=True)

    def _listen_and_ask(self, ear: Ear) -> Outcome:
        """Hear the lock's own channel, for a holder who wakes no other, and ask again: it may be free."""
        try:
            ear.listen_to(lock_channel(self._key))
        except (RedisError, OSError):
            self._lose_ear()
            return self._try(queue=True)
        return self._ask()

    def wait(self, timeout: float) -> Outcome:
        """See the base class."""
        if self._ear is None:  # the server was away
            time.sleep(min(timeout, RECOVERY_PAUSE))
            return self.try_acquire(queue=True)
        try:
            woken = self._listen_until(now() + timeout)
        except (RedisError, OSError):
            self._lose_ear()
            woken = None
        return self._done(woken) if woken else self.try_acquire(queue=True)

    def _listen_until(self, deadline: float) -> Grant | None:
        """Return the hand-over, or None when it is time to ask."""
        assert self._ear is not None
        own = self._ear.channel.encode()
        while (left := deadline - now()) > 0:
            heard = self._ear.hear(left)
            if heard is None:
                break
            channel, payload = heard
            if channel and channel != own:
                break
            meant = read_wakeup(payload, self._owner, self._asked) if channel else False
            if isinstance(meant, Grant) and self._wire.copies is None:
                return meant
            if meant:
                break
        return None

    def _done(self, outcome: Outcome) -> Outcome:
        if isinstance(outcome, Grant) and self._ear is not None:
            self._ear.home.give_back(self._ear)
            self._ear = None
        return outcome

    def _lose_ear(self) -> None:
        """Start over with a new ear: a place whose channel nobody hears is passed over."""
        self._withdraw()
        self._close_ear()

    def _close_ear(self) -> None:
        if self._ear is not None:
            self._ear.close()
        self._ear, self._place = None, b""

    def leave(self) -> None:
        """See the base class."""
        if self._ear is None:
            return
        if self._withdraw():
            self._ear.home.give_back(self._ear)
        else:
            self._ear.close()
        self._ear = None

    def _withdraw(self) -> bool:
        try:
            self._wire.call(self._undo(self._place))
        except LockError:
            return False
        return True

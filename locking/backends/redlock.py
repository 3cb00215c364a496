"""Redlock: a lock on the majority of N independent Redis servers, none of which knows of the others.

Source: S. Sanfilippo, "Distributed Locks with Redis", redis.io, and M. Kleppmann's reply, "How to do
distributed locking", 2016. What is made of the reply: tokens that rise strictly as long as no majority loses
what it knew, and a fence in the database for the rest.

A token is the highest that the granting servers minted, written back to a majority of them before the lock is
given: any later majority shares a server with it, which then mints a higher one.

A request is sent to every server before the first reply is read. A server that refuses, hangs or fails is
*silent*, whatever the reason, and is left alone for a moment; what it may still do of what it was asked is
undone when it speaks again.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from django.core.checks import CheckMessage, Warning
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError, ResponseError

from locking.backends.base import (
    AsyncPollingWaiter,
    AsyncWaiter,
    Busy,
    Grant,
    Heartbeat,
    Held,
    Holder,
    Outcome,
    PollingWaiter,
    Waiter,
    ask_each,
)
from locking.backends.capabilities import ForceRelease, Heartbeats, Listing
from locking.backends.redis.backend import BATCH, RedisBackend
from locking.backends.redis.diagnosis import judge, parse_info
from locking.backends.redis.protocol import Terms, taken_from
from locking.backends.redis.scripts import Index, Ordinary, Request, command, extend_request
from locking.backends.redis.topology import bad_location
from locking.backends.redis.transport import ThreadConnection, ThreadServer, closed_on_failure, run
from locking.conf import AliasSettings, own_number
from locking.exceptions import BackendUnavailable
from locking.utils.clock import now
from locking.utils.ownership import new_owner

T = TypeVar("T")

__all__ = ["RedlockBackend"]

# By how much the clocks of servers and client may differ within a lease; Redlock's own figures.
DRIFT_SHARE: Final = 0.01
DRIFT_SECONDS: Final = 0.002

DEFAULT_NODE_TIMEOUT: Final = 0.25  # seconds; small beside a ttl, and the same for all
MOST: Final = 10_000  # holds of each server that are looked at, the oldest first
LEFT_ALONE: Final = 1.0  # seconds for which a silent server isn't asked: each caller would wait for it
SETTLING: Final = 0.1  # seconds after which a server that answers again has processed what it had received


# --- the servers ------------------------------------------------------------------------------------------


class Silence(NamedTuple):
    """In the place of a reply: why there is none."""

    reason: str


class PendingUndo(NamedTuple):
    """A pending undo: sent twice once the server answers, for it handles old requests in any order."""

    request: Request
    due: float
    last: bool


class Sent(NamedTuple):
    """A request on its way."""

    connection: ThreadConnection
    fresh: bool


class Node:
    """One of the servers; as `backend` it is asked alone."""

    def __init__(self, settings: AliasSettings, url: str, timeout: float, restart_delay: float) -> None:
        options = {**settings.options, "socket_timeout": timeout, "socket_connect_timeout": timeout}
        self.backend = RedisBackend(replace(settings, location=url, cache=None, options=options))
        alone: Any = self.backend.calls  # on connections of its own, which don't tell of a restart
        self.server = ThreadServer(Terms(settings.alias, alone.index), alone.pool)
        self._timeout, self._restart_delay = timeout, restart_delay
        self._pending: deque[PendingUndo] = deque(maxlen=10_000)
        self._silent_until, self._why = 0.0, ""

    def send(self, request: Request) -> Sent | Silence:
        """Send the request, unless the server was silent a moment ago."""
        if now() < self._silent_until:
            return Silence(self._why)
        try:
            idle = taken_from(self.server.idle)
            connection = idle or self._opened(self.server.make())
            with closed_on_failure(connection):
                self._undo_pending(connection)
                connection.send(request.by_digest)
        except (RedisError, OSError) as error:
            return self._fell_silent(error)
        return Sent(connection, fresh=idle is None)

    def read(self, asked: Sent | Silence, request: Request, deadline: float) -> Any:
        """Return the reply, or Silence; `deadline` is shared by all servers."""
        if isinstance(asked, Silence):
            return asked
        connection = asked.connection
        try:
            with closed_on_failure(connection):
                try:
                    reply = _reply(connection, deadline)
                except NoScriptError:
                    connection.send(request.by_source)
                    reply = _reply(connection, deadline)
                except RedisConnectionError:
                    if asked.fresh:
                        raise
                    connection.disconnect()  # it was closed while it was idle: once more
                    self._opened(connection).send(request.by_source)
                    reply = request.settled(_reply(connection, deadline))
        except (RedisError, OSError) as error:
            return self._fell_silent(error)
        self.server.idle.append(connection)
        return reply

    def _opened(self, connection: ThreadConnection) -> ThreadConnection:
        """Connect; no connection outlives a restart of its server, so this is where one shows.

        A server that restarted abstains until every lock that it forgot has ended.
        """
        with closed_on_failure(connection):
            run(connection.connect())
            if self._restart_delay:
                said = run(connection.exchange(command("INFO", "server").by_digest, None))
                up = float(parse_info(said)["uptime_in_seconds"])
                if up < self._restart_delay:
                    raise RedisConnectionError(
                        f"it started {up:g} s ago and abstains for {self._restart_delay:g} s, having"
                        " forgotten locks"
                    )
        return connection

    def _fell_silent(self, error: Exception) -> Silence:
        self._why = f"{type(error).__name__}: {error}"
        if not isinstance(error, ResponseError):
            self._silent_until = now() + LEFT_ALONE
        return Silence(self._why)

    # what is to be undone

    def undo_later(self, request: Request) -> None:
        """Undo something as soon as the server speaks again."""
        self._pending.append(PendingUndo(request, 0.0, last=False))

    def cancel(self, request: Request) -> None:
        """Undo this no more."""
        for undo in [undo for undo in list(self._pending) if undo.request == request]:
            with suppress(ValueError):  # another thread has just taken it
                self._pending.remove(undo)

    def _undo_pending(self, connection: ThreadConnection) -> None:
        for _ in range(len(self._pending)):
            try:
                undo = self._pending.popleft()
            except IndexError:
                return
            if now() < undo.due:
                self._pending.append(undo)
                continue
            try:
                connection.send(undo.request.by_source)
                connection.receive(self._timeout, pushed=False)
            except ResponseError:  # an answer about this key, and none about what is asked next
                self._pending.append(undo._replace(due=now() + LEFT_ALONE))
                continue
            except BaseException:
                self._pending.append(undo)
                raise
            if not undo.last:
                self._pending.append(PendingUndo(undo.request, now() + SETTLING, last=True))

    def close(self) -> None:
        """Close the idle sockets."""
        run(self.server.shutdown())
        self.backend.close()


def _reply(connection: ThreadConnection, deadline: float) -> Any:
    return connection.receive(max(0.001, deadline - now()), pushed=False)


def ask_all(nodes: Sequence[Node], request: Request, timeout: float) -> list[Any]:
    """Return the reply of every node, or its Silence, after at most `timeout` seconds for all of them."""
    asked: deque[Sent | Silence] = deque()
    try:
        for node in nodes:
            asked.append(node.send(request))
        deadline = now() + timeout
        return [node.read(asked.popleft(), request, deadline) for node in nodes]
    finally:
        for each in asked:  # interrupted: their answers would be taken for those to other requests
            if isinstance(each, Sent):
                each.connection.disconnect()


# --- the lock ---------------------------------------------------------------------------------------------


class RedlockBackend(Listing, ForceRelease, Heartbeats):
    """`"BACKEND": "locking.backends.redlock.RedlockBackend"`, `"LOCATION": [url, url, url]`.

    Options:
        node_timeout: seconds that a silent server is waited for; never more than a third of the ttl.
        restart_delay: seconds for which a server that has restarted doesn't vote. As long as the longest ttl,
            it makes up for servers that forget their locks.

    Any other option is passed to redis-py's connections.
    """

    supports_fencing = True

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        options = dict(settings.options)
        timeout, delay = options.pop("node_timeout", DEFAULT_NODE_TIMEOUT), options.pop("restart_delay", 0)
        self._timeout = own_number(settings, timeout, "node_timeout")
        self._restart_delay = own_number(settings, delay, "restart_delay") if delay else 0.0
        redis = replace(settings, options=options)
        self.nodes = [Node(redis, url, self._timeout, self._restart_delay) for url in _urls(settings)]
        self._kind = Ordinary(Index(settings.key_prefix))
        self.quorum = len(self.nodes) // 2 + 1

    @classmethod
    def default_key_prefix(cls, settings: AliasSettings) -> str:
        return RedisBackend.default_key_prefix(settings)

    def try_acquire(
        self, key: str, owner: str, ttl: float, *, fenced: bool = False, owner_is_given: bool = False
    ) -> Outcome:
        """See the base class; of a given owner only what was new is undone, and nothing later."""
        sent, patience = now(), min(self._timeout, ttl / 3)
        request = self._kind.acquire(key, owner, padded(ttl), keep=fenced, queue=False)
        replies = ask_all(self.nodes, request, patience)
        tokens = [abs(reply) for reply in replies if isinstance(reply, int)]
        enough = len(tokens) >= self.quorum
        if enough and self._agree(key, owner, tokens, patience, keep=fenced) and now() < sent + ttl:
            release = self._kind.release(key, owner)
            for node in self.nodes:  # what earlier tries of this owner left would undo the grant
                node.cancel(release)
            is_new = all(reply > 0 for reply in replies if isinstance(reply, int))
            return Grant(max(tokens), sent, is_new=is_new)
        self._undo(key, owner, replies, patience, is_given=owner_is_given)
        self._require_quorum(replies)
        return _busy(replies)

    def waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Waiter:
        return RedlockWaiter(self, key, owner, ttl, fenced)

    def async_waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> AsyncWaiter:
        return AsyncRedlockWaiter(self, key, owner, ttl, fenced)

    def _agree(self, key: str, owner: str, tokens: list[int], patience: float, *, keep: bool) -> bool:
        """Have a majority know the highest, so that no later token of another majority is lower."""
        token = max(tokens)
        if tokens.count(token) >= self.quorum:
            return True
        request = self._kind.raise_token(key, owner, token, keep=keep)
        return ask_all(self.nodes, request, patience).count(1) >= self.quorum

    def _undo(self, key: str, owner: str, replies: list[Any], patience: float, *, is_given: bool) -> None:
        """Give back what too few have granted; a silent server may still grant it, and undoes it later.

        A given owner may have held the lock before, on a majority that is silent now: nothing is owed then.
        """
        request = self._kind.release(key, owner)
        granted = [
            node
            for node, reply in zip(self.nodes, replies, strict=True)
            if isinstance(reply, int) and (reply > 0 or not is_given)
        ]
        answers = ask_all(granted, request, patience)
        if not is_given:
            self._undo_later(request, self.nodes, replies)
            self._undo_later(request, granted, answers)

    def _undo_later(self, request: Request, nodes: Sequence[Node], replies: list[Any]) -> None:
        for node, reply in zip(nodes, replies, strict=True):
            if isinstance(reply, Silence):
                node.undo_later(request)

    def _require_quorum(self, replies: list[Any]) -> None:
        silent = [reply.reason for reply in replies if isinstance(reply, Silence)]
        if len(replies) - len(silent) < self.quorum:
            raise BackendUnavailable(
                f"{len(silent)} of {len(replies)} Redis servers of the lock backend {self.alias!r} don't"
                f" answer, and {self.quorum} must: {'; '.join(silent)}"
            )

    def extend(self, key: str, owner: str, ttl: float) -> bool:
        return self._decided(self._votes([(key, owner, ttl)])[0])

    def shorten(self, key: str, owner: str, ttl: float) -> bool:
        request = self._kind.extend(key, owner, padded(ttl), exactly=True)
        return self._decided(ask_all(self.nodes, request, self._timeout))

    def extend_many(self, leases: Sequence[tuple[str, str, float]]) -> list[bool | None]:
        votes: list[list[Any]] = []
        for start in range(0, len(leases), BATCH):
            votes += self._votes(leases[start : start + BATCH])
        return ask_each([partial(self._decided, each) for each in votes], seconds=math.inf)

    def _votes(self, leases: Sequence[tuple[str, str, float]]) -> list[list[Any]]:
        """Return what each server says of each lease."""
        request = extend_request([(key, owner, padded(ttl)) for key, owner, ttl in leases])
        patience = min(self._timeout, min(ttl for _, _, ttl in leases) / 3)
        replies = ask_all(self.nodes, request, patience)
        return [
            [reply if isinstance(reply, Silence) else reply[i] for reply in replies]
            for i in range(len(leases))
        ]

    def _decided(self, votes: list[Any]) -> bool:
        """Whether a majority says yes; BackendUnavailable when the silent ones would decide it."""
        yes = votes.count(1)
        silent = sum(vote not in (0, 1) for vote in votes)
        if yes < self.quorum <= yes + silent:
            self._require_quorum(votes)
            raise BackendUnavailable(
                f"the lock backend {self.alias!r}: {yes} of {len(votes)} Redis servers have the lock and"
                f" {silent} don't answer, so it is unknown whether {self.quorum} do"
            )
        return yes >= self.quorum

    def release(self, key: str, owner: str) -> bool:
        """See the base class; servers that don't answer release it as soon as they do."""
        request = self._kind.release(key, owner)
        replies = ask_all(self.nodes, request, self._timeout)
        self._undo_later(request, self.nodes, replies)
        return self._decided(replies)

    def force_release(self, key: str, expected: str) -> bool:
        return self.release(key, expected)

    def holder(self, key: str) -> Holder | None:
        replies = ask_all(self.nodes, self._kind.holder(key), self._timeout)
        self._require_quorum(replies)
        left = defaultdict[bytes, list[int]](list)
        for _, owner, milliseconds in [each for each in replies if each and not isinstance(each, Silence)]:
            left[owner].append(milliseconds)
        for owner, times in left.items():
            if len(times) >= self.quorum:
                return Holder(owner.decode(), 1, bare(sorted(times)[-self.quorum] / 1000))
        return None

    # what is held, and by whom

    def held(self, *, prefix: str = "", offset: int = 0, limit: int = 50) -> list[Held]:
        return [self._agreed(holds) for holds in self._listed(prefix)[offset : offset + limit]]

    def _listed(self, prefix: str) -> list[list[Held]]:
        """Return what a majority lists, the oldest first: for each hold what each of them says of it."""
        said: defaultdict[tuple[str, str], list[Held]] = defaultdict(list)
        for holds in self._from_each(lambda server: server.indexed(prefix, 0, MOST)):
            for hold in holds:
                said[hold.key, hold.owner].append(hold)
        agreed = [holds for holds in said.values() if len(holds) >= self.quorum]
        return sorted(agreed, key=lambda holds: min(hold.since or 0.0 for hold in holds))

    def _from_each(self, ask: Callable[[RedisBackend], T]) -> list[T]:
        """Return what the servers answer, a majority at least."""
        answers, silent = list[T](), list[BackendUnavailable]()
        for node in self.nodes:
            try:
                answers.append(ask(node.backend))
            except BackendUnavailable as error:
                silent.append(error)
        if len(answers) < self.quorum:
            raise silent[0]
        return answers

    def _agreed(self, holds: Sequence[Held]) -> Held:
        """Return what several servers say of one hold, which ends when no majority has it any more."""
        left = sorted(hold.remaining for hold in holds if hold.remaining is not None)
        return replace(
            holds[0],
            remaining=bare(left[-self.quorum]) if len(left) >= self.quorum else None,
            token=max(hold.token for hold in holds),
            since=min(hold.since or 0.0 for hold in holds) or None,
            waiters=None,  # they poll, without a queue
        )

    def count_held(self, *, prefix: str = "") -> int:
        return len(self._listed(prefix))

    def publish_heartbeats(self, records: Mapping[str, str | None], *, forget: Collection[str] = ()) -> None:
        self._from_each(lambda server: server.publish_heartbeats(records, forget=forget))

    def heartbeats(self, clients: Collection[str] | None = None) -> dict[str, Heartbeat]:
        """See the base class: what the server says that heard of a client last."""
        answers = self._from_each(lambda server: server.heartbeats(clients))
        heard = [each for answer in answers for each in answer.items()]
        return dict(sorted(heard, key=lambda each: each[1].silent or 0.0, reverse=True))

    def tidy(self) -> None:
        self._from_each(RedisBackend.tidy)

    # housekeeping

    def check(self, *, live: bool = False) -> list[CheckMessage]:
        """See the base class; live, every server is asked."""
        found = list[CheckMessage]()
        if len(self.nodes) % 2 == 0:
            even = Warning(
                f"LOCKING[{self.alias!r}] is on {len(self.nodes)} Redis servers, an even number.",
                hint="It tolerates no more failures than with one server fewer: use an odd number.",
                id="locking.W004",
            )
            found.append(even)
        forgets = Warning(
            f"A Redis server of LOCKING[{self.alias!r}] forgets its locks when it restarts.",
            hint="Set OPTIONS['restart_delay'] to the longest ttl, or appendfsync to always.",
            id="locking.W111",
        )
        for info in [node.backend.info() for node in self.nodes] if live else ():
            found += judge(info, self.alias)
            if info.get("aof_enabled") == "0" and not self._restart_delay:
                found.append(forgets)
        return found

    def close(self) -> None:
        for node in self.nodes:
            node.close()


def owner_of_try(owner: str, attempts: int) -> str:
    """Return the owner of one try: that of the acquisition for the first, and new ones of the same client.

    A server that was silent may carry out the release of an earlier try at any time later. It must not find
    the grant of a later one under the same owner.
    """
    return new_owner(owner.rpartition(":")[0]) if attempts else owner


class Tries:
    """Every try of a waiter has an owner of its own, unless it is given."""

    owner: str
    owner_is_given: bool
    _tries = 0

    def __init__(self, backend: RedlockBackend, key: str, owner: str, ttl: float, fenced: bool) -> None:
        super().__init__(backend, key, owner, ttl, fenced)  # type: ignore[call-arg]
        self.owner, self._attempt = owner, partial(backend.try_acquire, key, ttl=ttl, fenced=fenced)

    def _try(self) -> Outcome:
        self.owner = owner_of_try(self.owner, 0 if self.owner_is_given else self._tries)
        self._tries += 1
        return self._attempt(owner=self.owner, owner_is_given=self.owner_is_given)


class RedlockWaiter(Tries, PollingWaiter):
    """A thread that waits."""

    def try_acquire(self, *, queue: bool) -> Outcome:
        return self._try()


class AsyncRedlockWaiter(Tries, AsyncPollingWaiter):
    """A task that waits."""

    async def try_acquire(self, *, queue: bool) -> Outcome:
        return await asyncio.to_thread(self._try)


def padded(ttl: float) -> float:
    """Return the ttl sent to the servers: longer by the drift, so that the holder's own ends first."""
    return ttl * (1 + DRIFT_SHARE) + DRIFT_SECONDS


def bare(left: float) -> float:
    """Return how much of a lease is left by the holder's reckoning."""
    return max(0.001, (left - DRIFT_SECONDS) / (1 + DRIFT_SHARE))


def _busy(replies: list[Any]) -> Busy:
    refusals = [(reply[1].decode(), reply[0]) for reply in replies if isinstance(reply, list)]
    if not refusals:
        return Busy()
    holder = Counter(owner for owner, _ in refusals).most_common(1)[0][0]
    left = min(left for _, left in refusals)
    return Busy(None if left < 0 else bare(left / 1000), holder)


def _urls(settings: AliasSettings) -> list[str]:
    urls = settings.location
    if settings.cache is not None or not isinstance(urls, list | tuple):
        raise bad_location(settings, f"must be a list of the servers' URLs, not {urls!r}")
    if len(set(urls)) < len(urls):
        raise bad_location(settings, "names a server twice: each has one vote")
    if len(urls) < 3:
        raise bad_location(settings, f"names {len(urls)}: to tolerate a failure it takes three or more")
    return list(urls)

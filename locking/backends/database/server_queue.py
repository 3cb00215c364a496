"""Locks for which a database server queues the sessions that wait, and those that a session holds."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar

from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured
from django.db.backends.base.base import BaseDatabaseWrapper

from locking.backends.base import BaseLockBackend, Busy, Grant, Outcome, PollingWaiter, Waiter
from locking.backends.capabilities import SessionBound
from locking.backends.database.connection_pool import (
    ATTEMPTS,
    DEFAULT_TIMEOUT,
    ConnectionPool,
    NoConnection,
    discard,
    require_alias,
)
from locking.backends.options import own_options
from locking.conf import AliasSettings
from locking.exceptions import BackendUnavailable, LockNotSupported
from locking.utils.background import after_fork
from locking.utils.clock import now


class ServerQueueBackend(BaseLockBackend):
    """A backend on the database `OPTIONS['using']`, whose waiters wait in the server's own queue.

    Attributes:
        vendors: the engines that have such locks.
        scope: the same in words.
        options: further ones, with their defaults.
    """

    vendors: ClassVar[tuple[str, ...]] = ("postgresql",)
    scope: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        options = own_options(settings, using="default", timeout=DEFAULT_TIMEOUT, **self.options)
        self._timeout, self._session_pooling = options["timeout"], bool(options.get("session_pooling"))
        self._using = require_alias(options["using"], settings.alias)
        self._pool = ConnectionPool(self._using, self._timeout, settings.alias, self._identify)
        if self._pool.vendor not in self.vendors:
            raise ImproperlyConfigured(
                f"LOCKING[{settings.alias!r}]: {self.scope}, and the database {self._using!r} is"
                f" {self._pool.vendor}; take DatabaseBackend"
            )

    def _identify(self, connection: Any) -> None:
        """Prepare a new connection."""

    @abstractmethod
    def wait_for(self, key: str, owner: str, ttl: float, seconds: float) -> Outcome:
        """Wait in the server's queue, at most `seconds`."""

    def waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Waiter:
        return ServerQueueWaiter(self, key, owner, ttl, fenced)

    def close(self) -> None:
        """See the base class; what is held stays held."""
        self._pool.close()


class ServerQueueWaiter(PollingWaiter):
    """A thread that waits in the server's own queue; a wait that ended has left it already."""

    _backend: ServerQueueBackend

    def wait(self, timeout: float) -> Outcome:
        return self._backend.wait_for(self._key, self._owner, self._ttl, timeout)


class SessionLockBackend(SessionBound, ServerQueueBackend):
    """A lock that a session of the server holds, and that ends with it; a session is one hold or one waiter.

    Attributes:
        pooler: what may stand between, and what then serves instead, in words.
        pooler_hint: what to do about it.
    """

    options = {"session_pooling": False}  # noqa: RUF012 - a constant
    frees_with_holder = True
    pooler: ClassVar[tuple[str, str]]
    pooler_hint: ClassVar[str]

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        after_fork(self.forget)

    @abstractmethod
    def forget(self) -> None:
        """Leave a forked child's parent what is its own: the child holds nothing."""

    def _refuse_pooler(self, session: int, greeted: int) -> None:
        """Raise where a pooler stands between: it may give the session, and the lock in it, to someone else.

        A pooler answers with a number of its own when a client connects, the server with its session's.

        Raises:
            LockNotSupported: naming what can be done.
        """
        if session == greeted or self._session_pooling:
            return
        pooler, instead = self.pooler
        raise LockNotSupported(
            f"the lock backend {self.alias!r} needs a session of its own, but a {pooler.format(self._using)}."
            " Connect directly; or, where it pools whole sessions, say OPTIONS={'session_pooling': True}; or"
            f" take {instead} leaves alone"
        )

    def try_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        sent = now()
        if self.extend(key, owner, ttl):
            return Grant(0, sent, is_new=False)
        return self._ask(ATTEMPTS, key, owner, ttl, 0.0)

    def wait_for(self, key: str, owner: str, ttl: float, seconds: float) -> Outcome:
        """See the base class; what is left of the time goes to another connection if the first breaks.

        The server may have closed it while it was idle in the pool.
        """
        until = now() + seconds
        try:
            return self._ask(1, key, owner, ttl, seconds)
        except BackendUnavailable:
            if (left := until - now()) <= 0:
                raise
        self._pool.close()
        return self._ask(1, key, owner, ttl, left)

    def _ask(self, attempts: int, *asked: Any) -> Outcome:
        try:
            return self._pool.retried(self._attempt, *asked, attempts=attempts)
        except NoConnection as error:  # a waiter asks again while its time lasts
            return Busy(outage=error)

    def _attempt(self, attempt: int, key: str, owner: str, ttl: float, patience: float) -> Outcome:
        """Wait for a connection, and then in the server's queue, at most `patience` seconds."""
        deadline = now() + patience
        connection = self._pool.take(patience=patience)
        left = max(0.001, deadline - now()) if patience else 0.0
        try:
            outcome = self._lock(connection, key, owner, ttl, left)
        except BaseException:
            discard(connection)
            raise
        if isinstance(outcome, Busy):
            self._pool.give_back(connection)
        return outcome

    @abstractmethod
    def _lock(
        self, connection: BaseDatabaseWrapper, key: str, owner: str, ttl: float, patience: float
    ) -> Outcome:
        """Take the lock on this connection, which then is the hold's; without patience ask once.

        After a wait the lease begins at its end: how long ago the lock was granted is unknown.
        """

    def hold_ends(self, key: str, owner: str) -> float:
        """See the base class: with its session, whose end the socket tells."""
        return math.inf if self._is_alive(key, owner) else -math.inf

    @abstractmethod
    def _is_alive(self, key: str, owner: str) -> bool:
        """Whether the session of a hold still stands; looks at the socket only."""

    def check(self, *, live: bool = False) -> list[CheckMessage]:
        """See the base class; live, it looks whether a pooler stands between."""
        try:
            if live:
                self._pool.fetch("SELECT 1")
        except LockNotSupported as error:
            return [Error(str(error), hint=self.pooler_hint, id="locking.E111")]
        return []

"""Locks for which a database server queues the sessions that wait."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from django.core.exceptions import ImproperlyConfigured

from locking.backends.base import BaseLockBackend, Outcome, PollingWaiter, Waiter
from locking.backends.database.connection_pool import DEFAULT_TIMEOUT, ConnectionPool, require_alias
from locking.backends.options import own_options
from locking.conf import AliasSettings


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

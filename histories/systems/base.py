"""What a nemesis and the runner know of every system of lock servers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from histories.servers import NotReady, Server, set_clock, until

LEASE: Final = 2.5
"""Seconds of every lease: long enough for a busy machine, short enough for many in a minute."""

REQUEST: Final = 1.0
"""Seconds that a request to a lock server may take."""


@dataclass(frozen=True)
class Abilities:
    """What the backend of a system can do, as its page says."""

    fenced: bool = True
    semaphore: bool = True
    read_write: bool = True
    lists: bool = True
    in_transaction: bool = False
    """The lock is one of the transaction: it has no lease, and ends with the register's own COMMIT."""


class System(ABC):
    """Lock servers on hosts. `members` are the processes that a nemesis may harm."""

    name: ClassVar[str]
    abilities: ClassVar[Abilities] = Abilities()
    promises: ClassVar[Sequence[str]] = ("fenced",)
    """The locks and registers whose histories are possible under every fault: what the pages promise."""

    def __init__(self) -> None:
        self.members: list[Server] = []

    @abstractmethod
    def start(self) -> None:
        """Start all servers and wait until they serve."""

    @abstractmethod
    def is_whole(self) -> bool:
        """Whether all servers are up and agree who leads."""

    @abstractmethod
    def locking(self) -> dict[str, Any]:
        """Return the alias of LOCKING that reaches it."""

    def databases(self) -> dict[str, dict[str, Any]]:
        """Return its own entries of DATABASES."""
        return {}

    def leader(self) -> Server:
        """Return the server that leads, or the one that matters most."""
        return self.members[0]

    def promote(self, lost: Server) -> None:  # noqa: B027 - most servers elect their leader themselves
        """Have another server take over from `lost`, where that isn't done by the servers themselves."""

    @property
    def hosts(self) -> list[str]:
        """The hosts of its servers, each once."""
        return list(dict.fromkeys(member.host for member in self.members))

    def restore(self) -> None:
        """Thaw, clear and restart what a nemesis left, and wait until all is whole."""
        for host in self.hosts:
            set_clock(host, 0)
        for member in self.members:
            member.thaw()
            member.disk.clear()
        self._restart(self.members)
        try:
            until(self.is_whole, f"{self.name} is whole", 30)
        except NotReady:  # a server that came through the fault alive but unusable is started again
            for member in self.members:
                member.kill()
            self._restart(self.members)
            until(self.is_whole, f"{self.name} is whole after a restart")

    def _restart(self, members: Iterable[Server]) -> None:
        for member in members:
            if not member.lives:
                member.start()

    def stop(self) -> None:
        """End all servers."""
        for member in self.members:
            with suppress(OSError):
                member.remove()

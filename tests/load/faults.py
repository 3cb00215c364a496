"""What is done to the servers in mid-run."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.load.servers import Servers
from tests.load.shop import Shop


def _kill_worker(shop: Shop, servers: Servers, chance: random.Random) -> None:
    shop.kill_worker(chance)


def _flush(shop: Shop, servers: Servers, chance: random.Random) -> None:
    with servers.redis.client() as client:
        client.flushall()


def _crash_redis(shop: Shop, servers: Servers, chance: random.Random) -> None:
    servers.crash(servers.redis)


def _crash_postgres(shop: Shop, servers: Servers, chance: random.Random) -> None:
    servers.crash(servers.postgres)


FAULTS: dict[str, tuple[str, Callable[[Shop, Servers, random.Random], None]]] = {
    "kill": ("a web worker killed", _kill_worker),
    "flush": ("Redis FLUSHALL", _flush),
    "redis": ("Redis killed and started", _crash_redis),
    "postgres": ("PostgreSQL killed and started", _crash_postgres),
}


@dataclass(frozen=True)
class Fault:
    """One fault at one moment.

    Attributes:
        name: a key of `FAULTS`.
        at: the moment, as a part of the run between 0 and 1.
    """

    name: str
    at: float

    @property
    def text(self) -> str:
        """In words."""
        return FAULTS[self.name][0]


def parse(text: str) -> list[Fault]:
    """Return the faults of a list such as `kill,flush,kill`, spread evenly over the run.

    Raises:
        ValueError: naming the one that there isn't.

    Example:
        >>> parse("kill,flush")
        [Fault(name='kill', at=0.3333333333333333), Fault(name='flush', at=0.6666666666666666)]
    """
    names = [name.strip() for name in text.split(",") if name.strip() and name.strip() != "none"]
    for name in names:
        if name not in FAULTS:
            raise ValueError(f"unknown fault {name!r}; there are {', '.join(FAULTS)}, or none")
    return [Fault(name, (number + 1) / (len(names) + 1)) for number, name in enumerate(names)]


def strike(
    faults: Sequence[Fault], shop: Shop, servers: Servers, *, start: float, seconds: float, seed: int
) -> list[dict[str, object]]:
    """Let each fault happen at its moment; return what happened when, and until when.

    Args:
        faults: in the order of their moments.
        shop, servers: whom they hit.
        start: the moment (monotonic) from which the run counts.
        seconds: its length.
        seed: chooses the victims.
    """
    chance = random.Random(seed)
    struck: list[dict[str, object]] = []
    for fault in faults:
        time.sleep(max(0.0, start + fault.at * seconds - time.monotonic()))  # when the plan says
        at = time.monotonic() - start
        FAULTS[fault.name][1](shop, servers, chance)
        until = time.monotonic() - start
        struck.append({"at": round(at, 3), "until": round(until, 3), "name": fault.name, "text": fault.text})
    return struck

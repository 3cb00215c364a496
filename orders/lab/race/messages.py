"""What the processes of a race say to one another: plain frozen records, sent over a private pipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Answer = Literal["sold", "refused", "error"]


@dataclass(frozen=True)
class Hello:
    """The first word to the workers: settings that must be those of their parent (test databases, ports)."""

    settings: Mapping[str, object]


@dataclass(frozen=True)
class Born:
    """A worker's first word: the id of its process."""

    pid: int


@dataclass(frozen=True)
class Died:
    """The last word about a worker: its exit status (negative: by which signal), or what it died of."""

    status: int | str


@dataclass(frozen=True)
class Fault:
    """What is done on purpose to see a strategy break: once per round, at the strategy's `late_at`."""

    stand_still: float = 0.0  # least seconds for which its whole process is stopped (SIGSTOP, SIGCONT)
    kill: Path | None = None  # file with the id of a process that is killed: the lab's own Redis
    rest: float = 0.0  # seconds that this buyer alone rests, after that
    victim: int | None = None  # the buyer to whom it happens, before the others come; None: the first there


@dataclass(frozen=True)
class Round:
    """One race as one worker sees it."""

    sku: str
    strategy: str
    gap: float  # seconds that a buyer rests after deciding
    lease: float | None  # seconds of a lock that can't defend itself; None for the strategy's own
    deadline: float  # seconds that a buyer keeps trying while the shop is busy
    buyers: tuple[int, ...]
    others: tuple[str, ...] = ()  # further products in each cart; every other buyer names them first
    fault: Fault | None = None
    outage: bool = False  # whether a lock server that doesn't answer is waited for


@dataclass(frozen=True)
class Ready:
    """All buyers of this worker are ready, connections open."""


@dataclass(frozen=True)
class Go:
    """Start at this moment of the clock that all processes of a machine share."""

    start_at: float


@dataclass(frozen=True)
class Progress:
    """So many buyers of this worker have their answer."""

    answered: int


@dataclass(frozen=True)
class Mark:
    """A checkpoint that a buyer passed, with the stock that was seen and the line of the strategy's file."""

    name: str
    at: float  # monotonic seconds
    on_hand: int | None = None
    line: int | None = None
    token: int | None = None  # fencing token of the lease that was granted here
    ttl: float | None = None  # seconds of that lease


@dataclass(frozen=True)
class Outcome:
    """How it ended for one buyer."""

    buyer: int
    answer: Answer
    started: float = 0.0
    ended: float = 0.0
    retries: int = 0  # how often the shop said that it was busy
    queries: int = 0  # SQL statements of the last attempt
    order: str | None = None
    problem: str = ""
    trace: tuple[Mark, ...] = ()  # of all attempts, oldest first


@dataclass(frozen=True)
class Finished:
    """The outcomes of all buyers of this worker."""

    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True)
class Stop:
    """End: buyers who are still buying give up at the next checkpoint."""

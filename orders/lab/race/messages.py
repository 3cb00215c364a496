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
    """What is done on purpose to see a strategy break: once a round, by the first buyer who has decided.

    Args:
        stand_still: seconds for which its whole process is stopped (SIGSTOP, then SIGCONT); 0 for not at all.
        kill: file with the id of a process that is killed (SIGKILL): the lab's own Redis, which has another
            id after each death; None for none.
        rest: seconds that this buyer alone takes its time, after that.
    """

    stand_still: float = 0.0
    kill: Path | None = None
    rest: float = 0.0


@dataclass(frozen=True)
class Round:
    """One race as one worker sees it.

    Args:
        sku: what everybody wants one of.
        strategy: how the order is placed.
        gap: seconds a buyer rests after deciding.
        lease: seconds after which a lock that can't defend itself gives way, or None for the strategy's own.
        deadline: seconds a buyer keeps trying while the shop is busy.
        buyers: the numbers of this worker's buyers.
        others: further products, of which everybody wants one as well; every other buyer names them first.
        fault: what one of them does on purpose.
        outage: whether a lock server that doesn't answer is waited for, as a client waits on a 503.
    """

    sku: str
    strategy: str
    gap: float
    lease: float | None
    deadline: float
    buyers: tuple[int, ...]
    others: tuple[str, ...] = ()
    fault: Fault | None = None
    outage: bool = False


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
    """A checkpoint passed by a buyer: which, when (monotonic seconds), the stock that was seen there, and the
    line of the strategy's file that it stood on."""

    name: str
    at: float
    on_hand: int | None = None
    line: int | None = None


@dataclass(frozen=True)
class Outcome:
    """How it ended for one buyer.

    Args:
        buyer: its number, from 1.
        answer: `sold`, `refused` (sold out) or `error`.
        started, ended: monotonic seconds; their difference is what the buyer waited, retries included.
        retries: how often the shop said that it was busy.
        queries: SQL statements of the last attempt.
        order: id of the order, where there is one.
        problem: what went wrong, in one line, for an error.
        trace: the checkpoints of all attempts, oldest first.
    """

    buyer: int
    answer: Answer
    started: float = 0.0
    ended: float = 0.0
    retries: int = 0
    queries: int = 0
    order: str | None = None
    problem: str = ""
    trace: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class Finished:
    """The outcomes of all buyers of this worker."""

    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True)
class Stop:
    """End: buyers who are still buying give up at the next checkpoint."""

"""Histories of a lock, and the check that tells whether they were possible under mutual exclusion."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Hold:
    """One hold as its process saw it; all times by CLOCK_BOOTTIME, which is one for all processes.

    Attributes:
        invoked: when the acquisition was asked for.
        acquired: when the process had it in hand.
        deadline: when its lease ends by its own count.
        leaving: when it began to release; None if it never came to that (it was killed).
        clean: whether the release said that nothing had been lost.
    """

    process: int
    owner: str
    token: int
    invoked: float
    acquired: float
    deadline: float
    leaving: float | None = None
    clean: bool = False

    @property
    def end(self) -> float:
        """Until when the holder could believe that the lock was its own."""
        return self.deadline if self.leaving is None else min(self.deadline, self.leaving)

    @property
    def is_claim(self) -> bool:
        """False for a process that slept until its lease was over: it never believed to hold."""
        return self.end > self.acquired


def violations(holds: Iterable[Hold]) -> list[str]:
    """Return what contradicts mutual exclusion with strictly rising tokens; nothing if all is well.

    A claim begins when the holder knew that it was granted and ends when it began to release or its lease ran
    out: inside what the server granted. So two claims that overlap can't be explained by slow messages.
    """
    holds = list(holds)
    claims = sorted((hold for hold in holds if hold.is_claim), key=lambda hold: hold.acquired)
    return [*_overlaps(claims), *_token_faults(claims), *_order_faults(holds)]


def _overlaps(claims: Sequence[Hold]) -> Iterable[str]:
    latest: Hold | None = None
    for claim in claims:
        if latest is not None and claim.acquired < latest.end and claim.owner != latest.owner:
            yield f"two holders for {min(latest.end, claim.end) - claim.acquired:.6f} s: {latest} and {claim}"
        if latest is None or claim.end > latest.end:
            latest = claim


def _token_faults(claims: Sequence[Hold]) -> Iterable[str]:
    for one, next_ in itertools.pairwise(claims):
        if next_.token <= one.token:
            yield f"the token did not rise: {one} and then {next_}"


def _order_faults(holds: Sequence[Hold]) -> Iterable[str]:
    """Whichever asked after another was granted must have the higher token, even if it claims nothing."""
    for one, other in itertools.permutations(holds, 2):
        if one.acquired < other.invoked and other.token <= one.token:
            yield f"asked later and got no higher token: {one} and then {other}"


class Journal:
    """What one process writes down: a line an event, so that a kill loses at most the last."""

    def __init__(self, path: Path, process: int) -> None:
        self._file = path.open("a", buffering=1)
        self._process = process

    def note(self, **event: object) -> None:
        """Write one event."""
        self._file.write(json.dumps({"process": self._process, **event}) + "\n")


def read_holds(folder: Path) -> list[Hold]:
    """Return the holds of all journals in `folder`."""
    holds: dict[str, dict[str, object]] = {}
    for line in itertools.chain.from_iterable(_whole_lines(path) for path in folder.glob("*.jsonl")):
        event = json.loads(line)
        holds.setdefault(event["owner"], {}).update(event)
    return [Hold(**hold) for hold in holds.values()]  # type: ignore[arg-type]


def _whole_lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]

"""From the clients' logs to what is judged: operations with their intervals, and figures of a cell."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from histories.checker import History
from histories.models import FOREVER, Operation

MODELS: Final = {
    "lock": "lock",
    "renewed": "lock",
    "semaphore": "semaphore",
    "read_write": "read_write",
    "bare": "register",
    "confirmed": "register",
    "fenced": "fenced",
}
"""The model of a lock, by what its name begins with."""

REGISTERS: Final = ("bare", "confirmed", "fenced")


@dataclass
class Event:
    """One operation as it was logged.

    Attributes:
        facts: of all its lines.
        call, back: nanoseconds; no back = its end was never seen.
        outcome: ok, fail, unknown, or empty where the client was killed.
    """

    facts: dict[str, Any]
    call: int
    back: int = FOREVER
    outcome: str = ""
    wrote: bool = False

    @property
    def kind(self) -> str:
        """What the lock's name begins with."""
        return str(self.facts["key"]).partition("-")[0]

    def operation(self, action: str, *, back: int = 0, maybe: bool = False) -> Operation:
        """Return it for the checker."""
        facts = self.facts
        return Operation(
            action,
            self.call,
            back or self.back,
            owner=facts.get("owner", ""),
            token=facts.get("token", 0),
            value=facts.get("value", 0),
            mode=facts.get("mode", ""),
            maybe=maybe,
        )


@dataclass
class Record:
    """What the logs of a cell say."""

    events: list[Event] = field(default_factory=list)
    refused: int = 0


def read(folder: Path) -> Record:
    """Read all logs of a cell; the last line of a killed client may be cut short."""
    record = Record()
    for path in sorted(folder.glob("c*.jsonl")):
        known: dict[str, Event] = {}
        for text in path.read_text().splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue
            at, name, event = line.pop("at"), line.pop("operation"), line.pop("event")
            if event == "refused":
                record.refused += 1
            elif event == "call":
                known[name] = Event(line, at)
            else:
                found = known[name]
                found.facts |= line
                if event == "wrote":
                    found.wrote = True
                else:
                    found.back, found.outcome = at, event
        record.events += known.values()
    record.events.sort(key=lambda event: event.call)
    return record


def histories(record: Record) -> dict[History, list[Operation]]:
    """Return the history of each lock and register."""
    by_kind: dict[str, list[Event]] = defaultdict(list)
    for event in record.events:
        by_kind[event.kind].append(event)
    return {
        History(MODELS[kind], kind): list(sections(events) if kind in REGISTERS else holds(events))
        for kind, events in by_kind.items()
    }


def holds(events: Iterable[Event]) -> Iterator[Operation]:
    """Return what is known of each hold. One whose release isn't confirmed ends at some time after the last
    sign of it; an acquisition without an answer says nothing. A forced release ends a hold, whatever its
    holder still believes.
    """
    of_owner: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.facts.get("owner"):
            of_owner[event.facts["owner"]].append(event)
    for its in of_owner.values():
        broken = next((event for event in its if is_broken_by(event)), None)
        known = [event for event in its if event.outcome == "ok" and event.facts["action"] != "forbid"]
        if not known or known[0].facts["action"] != "acquire":
            continue
        if broken is not None:
            known = [event for event in known if event is known[0] or event.call < broken.call]
        for event in known:
            action = event.facts["action"]
            yield event.operation("end" if action == "release" else action)
        if known[-1].facts["action"] == "release":
            continue
        if broken is not None and broken.outcome == "ok":
            yield broken.operation("end")
        else:
            yield (broken or known[-1]).operation("end", back=FOREVER)


def is_broken_by(event: Event) -> bool:
    """Whether a forced release has ended its owner's hold, or may have."""
    if event.facts["action"] != "forbid":
        return False
    return event.outcome in ("", "unknown") or bool(event.facts.get("done"))


def sections(events: Iterable[Event]) -> Iterator[Operation]:
    """Return the sections that have or may have committed, and the forced releases."""
    for event in events:
        if event.facts["action"] == "forbid":
            if event.outcome != "fail":
                yield event.operation("forbid", back=event.back if event.outcome == "ok" else FOREVER)
        elif event.outcome == "ok":
            yield event.operation("section")
        elif event.wrote and event.outcome != "fail":
            yield event.operation("section", back=FOREVER, maybe=True)


@dataclass(frozen=True)
class Figures:
    """What a cell's table row shows beside the verdicts.

    Attributes:
        operations: how many were begun.
        unknown: how many of them ended without an answer.
        availability: the share of seconds in which some exclusive lock was granted.
        next_holder: the longest time, in seconds, in which one of them was granted to no client.
        lost: by register, the committed sections whose write another one has overwritten.
    """

    operations: int
    unknown: int
    availability: float
    next_holder: float
    lost: dict[str, int]


def figures(record: Record, begin: int, end: int) -> Figures:
    """Compute the figures of the time from `begin` to `end`, in nanoseconds."""
    grants: dict[str, list[int]] = defaultdict(list)
    values: dict[str, Counter[int]] = {}
    for event in record.events:
        if event.kind in REGISTERS and event.facts["action"] == "section":
            grants[event.kind].append(event.call)
            if event.outcome == "ok":
                values.setdefault(event.kind, Counter())[event.facts["value"]] += 1
        elif event.kind == "lock" and event.facts["action"] == "acquire" and event.outcome == "ok":
            grants["lock"].append(event.back)
    whole = (end - begin) // 10**9
    seconds = {(at - begin) // 10**9 for its in grants.values() for at in its} & set(range(whole))
    gaps = [
        later - earlier
        for its in grants.values()
        for within in [sorted(at for at in its if begin <= at < end)]
        for earlier, later in zip([begin, *within], [*within, end], strict=True)
    ]
    return Figures(
        operations=len(record.events),
        unknown=sum(event.outcome in ("", "unknown") for event in record.events),
        availability=round(len(seconds) / max(1, whole), 3),
        next_holder=round(max(gaps, default=end - begin) / 1e9, 1),
        lost={kind: counted.total() - len(counted) for kind, counted in values.items()},
    )

"""What a race has shown: how many too many were sold, and which two buyers read the same number."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from inventory.racing.recorder import Event
from inventory.racing.statements import Statement

MOST_REFUSALS = 5


class Buyer(NamedTuple):
    """One buyer: whether something was sold to it, why not, and its statements."""

    number: int
    sold: bool
    refusal: str
    events: tuple[Event, ...]


class Reading(NamedTuple):
    """A number that a buyer read before it wrote: from where, what, and whether it changed that number."""

    table: str
    row: str
    column: str
    value: str
    changed: bool

    def __str__(self) -> str:
        """Return it as a reader names it."""
        return f"{self.column} = {self.value} in {self.table}{self.row and f' ({self.row})'}"


class Race(NamedTuple):
    """The outcome of a race.

    Args:
        buyers: all of them.
        before: units that there were.
        after: units that are left by the shop's own count; None if it wasn't asked.
        processes: over which the buyers were spread.
    """

    buyers: tuple[Buyer, ...]
    before: int
    after: int | None
    processes: int

    @property
    def sold(self) -> int:
        """The number of buyers to whom something was sold."""
        return sum(buyer.sold for buyer in self.buyers)

    @property
    def too_many(self) -> int:
        """Units that were sold and weren't there."""
        return max(0, self.sold - self.before)

    @property
    def untraced(self) -> int:
        """Sales by which the stock did not fall, negative if it fell without one; 0 if it wasn't counted."""
        return 0 if self.after is None else self.sold - (self.before - self.after)

    @property
    def nothing_raced(self) -> bool:
        """Whether nothing was sold although there was something: such a race shows nothing."""
        return not self.sold and self.before > 0

    @property
    def exact(self) -> bool:
        """Whether the code sold what there was, no more, and counted it."""
        return not (self.too_many or self.untraced or self.nothing_raced)

    @property
    def shared(self) -> tuple[Buyer, Buyer, Reading] | None:
        """Two buyers who read the same number and were both served, None if no such pair was seen."""
        served: dict[Reading, list[Buyer]] = defaultdict(list)
        for buyer in self.buyers:
            if buyer.sold:
                for reading in set(readings(buyer)):
                    served[reading].append(buyer)
        pairs = [(buyers, reading) for reading, buyers in served.items() if len(buyers) > 1]
        if not pairs:
            return None
        buyers, reading = max(pairs, key=lambda pair: (pair[1].changed, len(pair[0])))
        return buyers[0], buyers[1], reading

    def __str__(self) -> str:
        """Return the verdict, the two buyers and the refusals."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        where = f"{len(self.buyers)} buyers in {self.processes} process{'es' if self.processes > 1 else ''}"
        if self.nothing_raced:
            yield f"Nothing was sold, so nothing was raced: {where}, {self.before} in stock."
            yield "A sale returns something true; or say with sold= what counts as one."
        elif self.too_many:
            yield f"OVERSOLD by {self.too_many}: {self.sold} sold, {self.before} in stock ({where})."
        else:
            yield f"{self.sold} sold, {self.before} in stock ({where})."
        if self.untraced and not self.nothing_raced:
            fell = f"The stock fell by {self.before - (self.after or 0)} for {self.sold} sales"
            what = "sales left no trace" if self.untraced > 0 else "units are missing"
            yield f"{fell}: {abs(self.untraced)} {what}."
        if not self.exact and (shared := self.shared):
            first, second, reading = shared
            yield f"Buyers {first.number} and {second.number} both read {reading}, and both were served."
        refusals = Counter(buyer.refusal for buyer in self.buyers if not buyer.sold)
        for refusal, count in refusals.most_common(MOST_REFUSALS):
            yield f"Refused, {count} ×: {refusal}"


def readings(buyer: Buyer) -> Iterator[Reading]:
    """Yield the numbers on which a buyer's writes may rest.

    These are the columns that it changes later, and answers of one row and one value, such as a count.
    """
    for place, event in enumerate(buyer.events):
        later = [other.statement for other in buyer.events[place + 1 :] if other.statement.writes]
        for row in map(dict, event.rows):
            for statement in later:
                if statement.writes in event.statement.reads:
                    yield from _changed(statement, row)
        if later and len(event.rows) == 1 and len(event.rows[0]) == 1:
            [(column, value)] = event.rows[0]
            yield Reading(", ".join(sorted(event.statement.reads)), "", column, value, changed=False)


def _changed(statement: Statement, row: dict[str, str]) -> Iterator[Reading]:
    for column, new in statement.sets:
        if column in row and row[column] != new:
            key = next((name for name in ("id", "pk", "sku") if name in row and name != column), "")
            yield Reading(statement.writes, key and f"{key} {row[key]}", column, row[column], changed=True)

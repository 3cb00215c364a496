"""What the traces show: who read the same stock, who worked under the same lock at the same time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.utils.translation import gettext, ngettext

from orders.lab.race.messages import Mark, Outcome


@dataclass(frozen=True)
class Section:
    """The work of one buyer under a lock, from having it to the stock being written; monotonic seconds."""

    buyer: int
    begin: float
    end: float


def explain_fault(outcomes: Sequence[Outcome]) -> str:
    """Say in one sentence what let a race go wrong, as far as the traces show it; empty if they don't."""
    return circle(outcomes) or shared_lock(outcomes) or same_reading(outcomes)


def circle(outcomes: Sequence[Outcome]) -> str:
    """Name the buyers that were made to give up because they waited in a circle.

    Example:
        "buyers 2 and 5 were victims of deadlocks: each waited for a lock of a buyer who waited for its own."
    """
    victims = sorted({o.buyer for o in outcomes for mark in o.trace if mark.name == "deadlocked"})
    if not victims:
        return ""
    return ngettext(
        "%(buyers)s was the victim of a deadlock: it waited for a lock of a buyer who waited for its own.",
        "%(buyers)s were victims of deadlocks: each waited for a lock of a buyer who waited for its own.",
        len(victims),
    ) % {"buyers": _name(victims)}


def explain_order(outcomes: Sequence[Outcome]) -> str:
    """Say in one sentence what the traces show of a sound strategy at work; empty if it shows nothing."""
    overtaken = sum(mark.name == "overtaken" for outcome in outcomes for mark in outcome.trace)
    if overtaken:
        return ngettext(
            "Once a buyer was overtaken, noticed it, and read again.",
            "%(times)s times a buyer was overtaken, noticed it, and read again.",
            overtaken,
        ) % {"times": overtaken}
    refused = sorted({o.buyer for o in outcomes for mark in o.trace if mark.name == "stale_token"})
    if refused:
        return ngettext(
            "%(buyers)s came back after its lease had ended: the database refused its token.",
            "%(buyers)s came back after their leases had ended: the database refused their tokens.",
            len(refused),
        ) % {"buyers": _name(refused)}
    sections = _sections(outcomes)
    if len(sections) < 2 or shared_lock(outcomes):
        return ""
    return gettext("%(sales)s sales were made under the lock, never two at a time.") % {
        "sales": len(sections)
    }


def same_reading(outcomes: Sequence[Outcome]) -> str:
    """Name the largest group of buyers that read the same stock and all sold from it.

    Example:
        "buyers 3, 7 and 12 all read 10 within 4 ms."
    """
    readings: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for outcome in outcomes:
        mark = _last(outcome.trace, "read")
        if outcome.answer == "sold" and mark and mark.on_hand is not None:
            readings[mark.on_hand].append((mark.at, outcome.buyer))
    if not readings:
        return ""
    stock, group = max(readings.items(), key=lambda item: len(item[1]))
    if len(group) < 2:
        return ""
    times = [at for at, _ in group]
    buyers = sorted(buyer for _, buyer in group)
    return gettext("%(buyers)s all read %(stock)s within %(time)s and all sold from it.") % {
        "buyers": _name(buyers),
        "stock": stock,
        "time": _ms(max(times) - min(times)),
    }


def shared_lock(outcomes: Sequence[Outcome]) -> str:
    """Name two buyers that both worked under the one lock at the same time.

    Example:
        "buyers 4 and 9 both held the lock, for 12 ms."
    """
    sections = sorted(_sections(outcomes), key=lambda section: section.begin)
    if not sections:
        return ""
    first, *others = sections
    for section in others:
        if section.begin < first.end:
            together = min(first.end, section.end) - section.begin
            return gettext("%(buyers)s both held the lock, for %(time)s.") % {
                "buyers": _name(sorted((first.buyer, section.buyer))),
                "time": _ms(together),
            }
        first = section
    return ""


def _sections(outcomes: Iterable[Outcome]) -> list[Section]:
    found = (_section(outcome) for outcome in outcomes if outcome.answer == "sold")
    return [section for section in found if section]


def _section(outcome: Outcome) -> Section | None:
    # Both ends lie strictly within the hold, so sections of a lock that works can't even seem to overlap.
    begin, end = _last(outcome.trace, "locked"), _last(outcome.trace, "written")
    return Section(outcome.buyer, begin.at, end.at) if begin and end and begin.at < end.at else None


def _last(trace: Sequence[Mark], name: str) -> Mark | None:
    return next((mark for mark in reversed(trace) if mark.name == name), None)


def _name(buyers: Sequence[int], most: int = 3) -> str:
    if len(buyers) == 1:
        return gettext("buyer %(number)s") % {"number": buyers[0]}
    if len(buyers) <= most:
        return gettext("buyers %(first)s and %(last)s") % {
            "first": gettext(", ").join(map(str, buyers[:-1])),
            "last": buyers[-1],
        }
    return gettext("buyers %(first)s and %(more)s more") % {
        "first": gettext(", ").join(map(str, buyers[:most])),
        "more": len(buyers) - most,
    }


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.0095 else f"{seconds * 1000:.1f} ms"

"""What is raced: the four numbers a person chooses, and the variants of the strategies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orders.lab.race.messages import Fault
from orders.lab.strategies import Strategy

MOST_BUYERS = 1000
MOST_STOCK = 1_000_000
MOST_PROCESSES = 64
LONGEST_GAP = 10.0

_DURATION = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>ms|s)?", re.ASCII)
_ACROSS = "@processes"


class PlanError(ValueError):
    """A number or a name that can't be raced; the message says which, why and what to write instead."""


@dataclass(frozen=True)
class Plan:
    """The parameters of a race.

    Raises:
        PlanError: a number is out of its range.

    Example:
        >>> Plan(buyers=40, stock=10, gap=0.02, processes=4).due
        10
    """

    buyers: int = 40  # who want one piece each
    stock: int = 10
    gap: float = 0.02  # seconds between deciding and writing, in which others can act
    processes: int = 4
    tries: int = 5  # races that a broken strategy gets to show its fault
    deadline: float = 30.0  # seconds that a buyer keeps trying while the shop is busy
    lease: float | None = None  # of a lock that can't defend itself; None: three quarters of the gap
    fault: Fault | None = None

    def __post_init__(self) -> None:
        _require("buyers", self.buyers, 1, MOST_BUYERS)
        _require("stock", self.stock, 0, MOST_STOCK)
        _require("processes", self.processes, 1, MOST_PROCESSES)
        _require("tries", self.tries, 1, 100)
        if self.processes > self.buyers:
            raise PlanError(
                f"processes is {self.processes} but there are only {self.buyers} buyers: "
                f"some would be empty; use --processes {self.buyers} or fewer"
            )
        if not 0 <= self.gap <= LONGEST_GAP:
            raise PlanError(
                f"gap is {self.gap:g} s: it must lie between 0 and {LONGEST_GAP:g} s, such as 20ms"
            )

    @property
    def due(self) -> int:
        """Pieces that a correct shop sells: min(stock, buyers)."""
        return min(self.stock, self.buyers)


@dataclass(frozen=True)
class Variant:
    """One line of the table: a strategy, where its buyers stop and what it promises there."""

    name: str
    strategy: str
    sound: bool
    processes: int


def parse_gap(text: str) -> float:
    """Read a length of time as people type it.

    Raises:
        PlanError: no number, no unit, or a sign.

    Example:
        >>> parse_gap("20ms")
        0.02
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise PlanError(f"gap is {text!r}: write a number and its unit, such as 20ms or 0.5s")
    number, unit = float(match["number"]), match["unit"]
    if unit is None and number:
        raise PlanError(f"gap is {text!r}, without a unit: write {text}ms or {text}s")
    return number / 1000 if unit == "ms" else number


def choose(selection: str, strategies: Mapping[str, type[Strategy]], plan: Plan) -> tuple[Variant, ...]:
    """Turn `all` or `name,name` into the variants to race, in the order given (broken ones first for `all`).

    A strategy that is sound within one process only has two: `local_lock`, and `local_lock@processes`.

    Raises:
        PlanError: an unknown name, or no name at all.
    """
    known = {v.name: v for strategy in strategies.values() for v in _variants(strategy, plan)}
    if selection.strip() == "all":
        return tuple(sorted(known.values(), key=lambda variant: variant.sound))
    names = [name.strip() for name in selection.split(",") if name.strip()]
    if not names:
        raise PlanError(f"strategy is {selection!r}: name at least one, or write all")
    return tuple(_named(name, known, strategies) for name in dict.fromkeys(names))


def present(
    selection: str, variants: Iterable[Variant], strategies: Mapping[str, type[Strategy]]
) -> tuple[tuple[Variant, ...], dict[str, str]]:
    """Ask each strategy whether it can be raced here; of `all`, those that can't are left out.

    Raises:
        PlanError: a strategy that was named can't be raced here.
    """
    names = dict.fromkeys(variant.strategy for variant in variants)
    absent = {name: reason for name in names if (reason := strategies[name].unavailable())}
    if absent and selection.strip() != "all":
        name, reason = next(iter(absent.items()))
        raise PlanError(f"strategy {name!r} can't be raced here: {reason}")
    return tuple(variant for variant in variants if variant.strategy not in absent), absent


def share_out(buyers: int, processes: int, workers: int) -> tuple[tuple[int, ...], ...]:
    """Number the buyers from 1 and deal them to the first `processes` of the workers, like cards.

    Example:
        >>> share_out(5, processes=2, workers=3)
        ((1, 3, 5), (2, 4), ())
    """
    hands = [tuple(range(first, buyers + 1, processes)) for first in range(1, processes + 1)]
    return (*hands, *(() for _ in range(workers - processes)))


def set_apart(victim: int, buyers: int, processes: int, workers: int) -> tuple[tuple[int, ...], ...]:
    """Deal the buyers as `share_out` does, with one of them alone in the last of the processes.

    Example:
        >>> set_apart(3, buyers=3, processes=2, workers=2)
        ((1, 2), (3,))
    """
    if processes < 2:
        return share_out(buyers, processes, workers)
    hands = share_out(buyers, processes - 1, workers)
    rest = [tuple(number for number in hand if number != victim) for hand in hands]
    return (*rest[: processes - 1], (victim,), *rest[processes:])


def _variants(strategy: type[Strategy], plan: Plan) -> Iterable[Variant]:
    if strategy.sound_across_processes or not strategy.sound:
        yield Variant(strategy.name, strategy.name, strategy.sound, plan.processes)
        return
    yield Variant(strategy.name, strategy.name, sound=True, processes=1)
    if plan.processes > 1:
        yield Variant(strategy.name + _ACROSS, strategy.name, sound=False, processes=plan.processes)


def _named(name: str, known: Mapping[str, Variant], strategies: Mapping[str, object]) -> Variant:
    if name in known:
        return known[name]
    if name.removesuffix(_ACROSS) in strategies and name.endswith(_ACROSS):
        raise PlanError(
            f"strategy {name!r} can't be raced here: it needs a strategy that is sound in one process "
            "only, and --processes 2 or more"
        )
    raise PlanError(f"strategy {name!r} is unknown: choose from all, {', '.join(known)}")


def _require(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise PlanError(f"{name} is {value}: it must be a whole number from {least} to {most}")

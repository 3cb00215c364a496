"""What is measured: the views to compare with, and every sound strategy behind `POST /checkout/`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inventory.strategies import Strategy

EMPTY, SELECT = "empty view", "SELECT 1"
UNLOCKED, FOR_UPDATE, DECORATED = "unlocked view", "select_for_update view", "@distributed_lock view"
SEGMENTS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Subject:
    """One thing to measure.

    Attributes:
        name: in tables and plots.
        path: where it is asked.
        strategy: the name to put into the request, or None.
        exact: whether it must never oversell.
        sells: whether it writes orders at all.
    """

    name: str
    path: str
    strategy: str | None = None
    exact: bool = True
    sells: bool = True


VIEWS = (
    Subject(EMPTY, "/bench/empty/", sells=False),
    Subject(SELECT, "/bench/select/", sells=False),
    Subject(UNLOCKED, "/bench/unlocked/", exact=False),
    Subject(FOR_UPDATE, "/bench/select_for_update/"),
    Subject(DECORATED, "/bench/distributed_lock/"),
)


def strategies() -> list[Subject]:
    """Return the sound strategies that stay so in several processes and whose servers are there."""
    from inventory.strategies import STRATEGIES

    return [
        Subject(strategy.name, "/checkout/", strategy.name)
        for strategy in STRATEGIES.values()
        if strategy.sound and strategy.sound_across_processes and not strategy.unavailable()
    ]


def segmented() -> dict[str, dict[int, Subject]]:
    """Return each strategy that has segments with 1, 2, 4 … of them; Django must be set up."""
    from inventory.strategies import STRATEGIES

    return {
        name: {n: Subject(_with(name, n), "/checkout/", _with(name, n)) for n in SEGMENTS}
        for name, strategy in STRATEGIES.items()
        if strategy.sound and hasattr(strategy, "segments")
    }


def _with(name: str, segments: int) -> str:
    return f"{name}@{segments}"


def offer() -> None:
    """Let a request name any sound strategy, also outside DEBUG, which would cost time by itself."""
    from inventory.strategies import STRATEGIES
    from orders import selectors

    for name, variants in segmented().items():
        for n in variants:
            STRATEGIES[_with(name, n)] = _variant(STRATEGIES[name], n)
    choices = [selectors.StrategyChoice(name, cls.sound, "") for name, cls in STRATEGIES.items()]
    selectors.strategy_choices = lambda: choices


def _variant(strategy: type[Strategy], segments: int) -> type[Strategy]:
    name = _with(strategy.name, segments)
    members: dict[str, Any] = {"name": name, "segments": segments, "__doc__": strategy.__doc__}
    if hasattr(strategy, "gate"):
        members["gate"] = type(strategy.gate)(name, shards=segments)
    return type(f"{strategy.__name__}{segments}", (strategy,), members)

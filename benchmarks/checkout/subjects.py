"""What is measured: the views to compare with, and every strategy behind `POST /checkout/`."""

from __future__ import annotations

from dataclasses import dataclass

EMPTY, SELECT = "empty view", "SELECT 1"
UNLOCKED, FOR_UPDATE, DECORATED = "unlocked view", "select_for_update view", "@distributed_lock view"


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
    """Return the strategies that are set up."""
    from orders.selling.strategies import names

    return [Subject(name, "/checkout/", name) for name in names()]


def offer() -> None:
    """Let a request name any strategy, also outside DEBUG, which would cost time by itself."""
    from orders.http import bodies
    from orders.selling.strategies import StrategyChoice, names

    choices = [StrategyChoice(name, "") for name in names()]
    setattr(bodies, "choices", lambda: choices)  # noqa: B010 - not for others to import

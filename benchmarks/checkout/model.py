"""A model of how throughput grows: named laws, fitted to the measured points, and what they predict.

**Universal Scalability Law** (N. Gunther, *Guerrilla Capacity Planning*, 2007; arXiv:0808.1431): N buyers
in a closed loop get X(N) = λN / (1 + σ(N - 1) + κN(N - 1)) answers per second. By Little's law N/X is their
mean response time, which the law makes a polynomial: a + bN + cN². So a fit is linear least squares.

**Group commit**: a batch of n orders takes c₀ + c₁n seconds, so one committer sells n / (c₀ + c₁n) per
second. It is the same polynomial without its last term, and the same fit.

**Bottleneck law** (P. Denning and J. Buzen, *The Operational Analysis of Queueing Network Models*, ACM
Computing Surveys 10(3), 1978): where an order needs D seconds of a resource of which there are m, at most m/D
orders per second can be sold; the least of these bounds is the bottleneck.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

Point = tuple[float, float]
"""How many there were (buyers, or orders per commit), and orders per second."""


@dataclass(frozen=True)
class Law:
    """Response time as a polynomial of the number n: `fixed + each * n + pair * n²` seconds.

    Attributes:
        fixed: seconds that don't depend on n.
        each: seconds that each further one adds: the serial share of its work.
        pair: seconds that each pair adds: the cost of keeping all of them consistent.
    """

    fixed: float
    each: float
    pair: float = 0.0

    def seconds(self, n: float) -> float:
        """Return the mean response time among n."""
        return self.fixed + self.each * n + self.pair * n * n

    def throughput(self, n: float) -> float:
        """Return orders per second among n."""
        return n / self.seconds(n)

    @property
    def alone(self) -> float:
        """Gunther's λ: orders per second of one."""
        return 1 / self.seconds(1)

    @property
    def contention(self) -> float:
        """Gunther's σ: the share of the work that is serial."""
        return 1 - self.fixed * self.alone

    @property
    def coherency(self) -> float:
        """Gunther's κ: what each pair costs."""
        return self.pair * self.alone

    @property
    def limit(self) -> float:
        """The most orders per second, with as many as that takes."""
        peak = self.each + 2 * math.sqrt(self.fixed * self.pair)
        return 1 / peak if peak else math.inf

    def residuals(self, points: Sequence[Point]) -> list[float]:
        """Return how far each measured throughput lies from the law's, as a share of the law's."""
        return [rate / self.throughput(n) - 1 for n, rate in points]


def fit(points: Sequence[Point], terms: int = 3) -> Law:
    """Return the law that fits best: least squares of relative errors, no coefficient below zero.

    Args:
        points: measured throughputs; those without an answer are left out.
        terms: 3 for the Universal Scalability Law, 2 for group commit.

    Raises:
        ValueError: there are fewer points than coefficients.
    """
    known = [(n, rate) for n, rate in points if rate > 0]
    if len(known) < terms:
        raise ValueError(f"{len(known)} points cannot determine {terms} coefficients; measure more sizes")
    fits = (_fit(known, powers) for k in range(1, terms + 1) for powers in combinations(range(terms), k))
    allowed = [law for law in fits if min(law.fixed, law.each, law.pair) >= 0]
    return min(allowed, key=lambda law: sum(error**2 for error in _errors(law, known)))


def _errors(law: Law, points: Sequence[Point]) -> Iterator[float]:
    return (law.seconds(n) * rate / n - 1 for n, rate in points)


def _fit(points: Sequence[Point], powers: Sequence[int]) -> Law:
    """Solve the normal equations of the powers given; response times count by their relative error."""
    rows = [[n**power * rate / n for power in powers] for n, rate in points]
    matrix = [[sum(row[i] * row[j] for row in rows) for j in range(len(powers))] for i in range(len(powers))]
    solved = dict(
        zip(powers, _solve(matrix, [sum(column) for column in zip(*rows, strict=True)]), strict=True)
    )
    return Law(*(solved.get(power, 0.0) for power in range(3)))


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Return the solution of a small system of linear equations; it is positive definite."""
    if not matrix:
        return []
    (pivot, *head), *rest = matrix
    factors = [row[0] / pivot for row in rest]
    below = [
        [value - factor * above for value, above in zip(row[1:], head, strict=True)]
        for row, factor in zip(rest, factors, strict=True)
    ]
    found = _solve(
        below, [value - factor * right[0] for value, factor in zip(right[1:], factors, strict=True)]
    )
    return [(right[0] - sum(a * x for a, x in zip(head, found, strict=True))) / pivot, *found]


class Demand(NamedTuple):
    """Seconds that one order needs: the web's and PostgreSQL's processors, Redis' thread, the hot row."""

    web: float
    postgres: float
    redis: float
    row: float = 0.0


@dataclass(frozen=True)
class Site:
    """Where the shop runs.

    Attributes:
        name: for the reader.
        cores: of each machine.
        web_machines: that serve the shop, beside PostgreSQL's and Redis' own; 0: one machine does everything.
    """

    name: str
    cores: int
    web_machines: int = 0


SITES = (
    Site("2 cores", 2),
    Site("8 cores", 8),
    Site("32 cores", 32),
    Site("32 web + 32 database", 32, 1),
    Site("4 × 32 web + 32 database", 32, 4),
)


def bounds(demand: Demand, site: Site, *, one_product: bool) -> dict[str, float]:
    """Return the most orders per second that each resource of a site allows."""
    together = demand.web + demand.postgres + demand.redis
    if site.web_machines:
        shares = {
            "web processors": (site.web_machines * site.cores, demand.web),
            "PostgreSQL's processors": (site.cores, demand.postgres),
        }
    else:
        shares = {"processors": (site.cores, together)}
    shares["Redis' thread"] = (1, demand.redis)
    if one_product:
        shares["the hot row"] = (1, demand.row)
    return {name: count / seconds for name, (count, seconds) in shares.items() if seconds > 0}


def predict(demand: Demand, site: Site, *, one_product: bool) -> tuple[float, str]:
    """Return the least of the bounds and the resource that sets it."""
    found = bounds(demand, site, one_product=one_product)
    resource = min(found, key=found.__getitem__)
    return found[resource], resource


def predictions(demands: Mapping[str, Demand], *, one_product: bool) -> list[dict[str, object]]:
    """Return a row per strategy and site."""
    return [
        {"peer": peer, "site": site.name, "products": "one" if one_product else "many"}
        | {"orders_per_second": rate, "bottleneck": resource}
        for peer, demand in demands.items()
        for site in SITES
        for rate, resource in [predict(demand, site, one_product=one_product)]
    ]


ASSUMPTIONS = (
    "Each core is as fast as those measured, and each added core adds its whole speed (no NUMA, no turbo).",
    "An order costs the same processor time at any scale, with as many web processes as cores.",
    "The load generator's processor time is not counted: customers bring their own.",
    "One hot product: its row in one PostgreSQL is a single server; batches of 64, one commit at a time."
    " More machines add none of these orders, and a network makes each commit longer.",
    "Many products: nothing is shared but processors and Redis. Where it would break first: the flush and the"
    " insertion locks of one WAL, the newest pages of indexes, and more than a few hundred connections.",
)
"""What the predictions take for granted."""

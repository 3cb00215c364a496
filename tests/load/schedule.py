"""When each buyer comes and what is in the basket: decided before the first one does.

An open model: buyers don't wait for one another. Latency counts from the moment in this schedule, not from
when a request could be sent; else a shop that stalls would hide its stall by holding the buyers back
("coordinated omission", https://www.scylladb.com/2021/04/22/on-coordinated-omission/).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Buyers at a constant rate.

    Args:
        rate: arrivals per second.
        seconds: how long they come.
        skus: what they buy; the first is hot, every other basket has it.
        seed: of the baskets.

    Example:
        >>> schedule = Schedule(rate=100, seconds=2, skus=("mug", "pen"), seed=1)
        >>> len(schedule), schedule.at(150)
        (200, 1.5)
    """

    rate: float
    seconds: float
    skus: tuple[str, ...]
    seed: int

    def __post_init__(self) -> None:
        if not self.rate > 0 or not self.seconds > 0 or not self.skus:
            raise ValueError(
                f"rate {self.rate}, seconds {self.seconds}, {len(self.skus)} products: each must be above 0"
            )

    def __len__(self) -> int:
        return max(1, round(self.rate * self.seconds))

    def at(self, number: int) -> float:
        """Return the seconds from the start at which this buyer comes."""
        return number / self.rate

    def basket(self, number: int) -> dict[str, int]:
        """Return the units by SKU that this buyer wants, the same in each process and each run."""
        chance = random.Random(f"{self.seed}:{number}")
        first = self.skus[0] if chance.random() < 0.5 else chance.choice(self.skus)
        skus = {first} if chance.random() < 0.7 else {first, chance.choice(self.skus)}
        return {sku: chance.choice((1, 1, 1, 2, 3)) for sku in sorted(skus)}

    def share(self, part: int, parts: int) -> Iterator[int]:
        """Return the buyers that one of so many processes plays."""
        return iter(range(part, len(self), parts))

    def demand(self) -> dict[str, int]:
        """Return the units of each SKU that all buyers want together."""
        wanted = dict.fromkeys(self.skus, 0)
        for number in range(len(self)):
            for sku, units in self.basket(number).items():
                wanted[sku] += units
        return wanted


def as_lines(basket: dict[str, int]) -> Sequence[dict[str, object]]:
    """Return a basket as a request has it."""
    return [{"sku": sku, "quantity": units} for sku, units in basket.items()]

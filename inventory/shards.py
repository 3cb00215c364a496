"""Keys of a stock reservation that one script sees at once; see `inventory.stock_reservation`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from inventory.domain import Shortage, SoldOut
from inventory.stock_store import answering, run


class NotLoaded(Exception):
    """The stock of a product isn't in Redis: never loaded, dropped, or lost."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Units of one product, out of one epoch of its stock."""

    sku: str
    epoch: str
    units: int


@dataclass(frozen=True, slots=True)
class Shard:
    """Keys that one script can see at once: in a cluster, those of one slot."""

    tag: str

    @property
    def ledger(self) -> str:
        """The key of the pending sales."""
        return f"{{{self.tag}}}:ledger"

    @property
    def skus(self) -> str:
        """The key of the set of products whose stock is kept; in the first shard only."""
        return f"{{{self.tag}}}:skus"

    def stock(self, sku: str) -> str:
        """The key of a product's units and epoch."""
        return f"{{{self.tag}}}:stock:{sku}"

    def take(self, sale: UUID, wanted: Mapping[str, int], *, whole: bool) -> list[Taken]:
        """Take units for a sale and enter them in the ledger.

        Args:
            sale: its id.
            wanted: units by SKU.
            whole: every line or nothing; else whatever is there.

        Raises:
            SoldOut: `whole`, and a line is short. NotLoaded: a product's stock isn't here.
        """
        pairs = [part for pair in wanted.items() for part in pair]
        verdict, *numbers = run(
            "gate_take", self._keys(wanted), [str(sale), "all" if whole else "some", *pairs]
        )
        if verdict == "missing":
            raise NotLoaded
        if verdict == "short":
            raise SoldOut(shortages(wanted, dict(zip(wanted, numbers, strict=True))))
        lines = zip(wanted, numbers[::2], numbers[1::2], strict=True)
        return [Taken(sku, epoch, units) for sku, epoch, units in lines if units]

    def settle(self, sale: UUID, taken: Sequence[Taken]) -> bool:
        """Strike the entry of a committed sale; False when a stock may not know of it and was removed."""
        keys = self._keys(each.sku for each in taken)
        (unsure,) = run("gate_settle", keys, [str(sale), *(each.epoch for each in taken)])
        return not unsure

    def void(self, sale: UUID, taken: Sequence[Taken]) -> None:
        """Strike the entry of a sale that failed, and give its units back."""
        numbers = [part for each in taken for part in (each.epoch, each.units)]
        run("gate_void", self._keys(each.sku for each in taken), [str(sale), *numbers])

    def left(self, skus: Iterable[str]) -> dict[str, int]:
        """Return the units here; those of a product that isn't loaded are missing."""
        with answering() as server:
            units = {sku: server.hget(self.stock(sku), "units") for sku in skus}
        return {sku: int(number) for sku, number in units.items() if number is not None}

    def pending(self, older_than: float = 0.0) -> dict[UUID, list[Taken]]:
        """Return the ledger's entries of at least that age in seconds."""
        found = iter(run("gate_pending", [self.ledger], [older_than]))
        return {
            UUID(sale): [Taken(*line) for line in json.loads(entry)["lines"]]
            for sale, entry in zip(found, found, strict=True)
        }

    def _keys(self, skus: Iterable[str]) -> list[str]:
        return [self.ledger, *map(self.stock, skus)]


def shortages(wanted: Mapping[str, int], left: Mapping[str, int]) -> list[Shortage]:
    """Return the products of which there is less than is wanted."""
    return [Shortage(sku, n, max(0, left.get(sku, 0))) for sku, n in wanted.items() if left.get(sku, 0) < n]

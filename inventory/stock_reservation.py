"""Stock in Redis before the database: it refuses quickly, and keeps a ledger of what it gave out.

    shard    keys of one slot: for each product a hash of `units` and `epoch`, and the ledger of pending sales
    ledger  sale -> what it took; written by the very script that takes, struck after the commit
    epoch   names one reading of the database; a stock is rebuilt under a new one, and gives and takes of an
            old one don't count

The rule: units + pending sales = what the database has. Where that can't be known, the stock is removed and
read again. Whatever Redis loses, the database has the last word, so it may only ever be *too high* (the
database then refuses), never too low for longer than until `reconcile`.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from inventory.domain import Busy, Line, SoldOut
from inventory.models import Product, StockMovement
from inventory.rows import find_products
from inventory.shards import NotLoaded, Shard, Taken, shortages
from inventory.stock_store import answering, run
from inventory.strategies.base import Reconciled, Sale
from locking import BackendUnavailable

logger = logging.getLogger(__name__)

REST = 1.0
"""Seconds for which a Redis that didn't answer isn't asked again: nobody shall wait for it in a row."""


@dataclass(slots=True)
class Hold:
    """What one sale has taken, shard by shard."""

    sale: UUID
    taken: list[tuple[Shard, list[Taken]]] = field(default_factory=list)


class StockReservation:
    """The shards of one strategy.

    Args:
        name: of the strategy; its keys begin with it.
        shards: over which each product's stock is spread; a cart that no single shard can serve takes from
            several, and with one shard no cart ever has to.
    """

    tries = 10

    def __init__(self, name: str, shards: int = 1) -> None:
        self.shards = [Shard(f"{name}:{number}") for number in range(shards)]
        self._rests_until = 0.0

    @contextmanager
    def holding(self, sale: Sale) -> Iterator[None]:
        """Take the units of `sale` for the block, which sells them in the database.

        After the commit the sale's entry is struck. Before it, a failure gives the units back. When it can't
        be known which (`sale.progress`), the entry stays for `reconcile`. Without Redis the block
        runs all the same: the database alone decides.

        Raises:
            SoldOut: nothing was asked of the database.
            UnknownProduct: naming every SKU that there isn't.
            Busy: other carts took and gave back the same units too often.
        """
        hold = self._take_or_rest(sale)
        try:
            yield
        except BaseException as error:
            if sale.progress.committed:
                self._end(hold, self._settle_all)
            elif not sale.progress.is_unknown_after(error):
                self._end(hold, self._void if not isinstance(error, SoldOut) else self._void_and_drop)
            raise
        self._end(hold, self._settle_all)

    def drop(self, skus: Iterable[str]) -> None:
        """Remove the stock of products; the next buyer reads it from the database. Pending sales stay."""
        first, *others = self.shards
        for sku in skus:
            run("gate_drop", [first.stock(sku), first.skus], [sku])
            with answering() as server:
                for shard in others:
                    server.delete(shard.stock(sku))

    def reconcile(self, older_than: float) -> Reconciled:
        """Settle what dead buyers left, then rebuild the stock of products at rest that has drifted."""
        settled = voided = 0
        for shard in self.shards:
            pending = shard.pending(older_than)
            made = _made(pending)
            for sale, taken in pending.items():
                self._settle(shard, sale, taken) if sale in made else shard.void(sale, taken)
            settled += len(made)
            voided += len(pending) - len(made)
        return Reconciled(settled, voided, self._rebuild())

    def drift(self, skus: Iterable[str]) -> dict[str, int]:
        """Return by SKU: units here, and those of sales that aren't made, less those in the database.

        Products whose stock isn't loaded can't drift; they are left out.
        """
        known = self._left(skus)
        for shard in self.shards:
            pending = shard.pending()
            made = _made(pending)
            for sale, taken in pending.items():
                for each in taken if sale not in made else ():
                    if each.sku in known and self._is_current(shard, each):
                        known[each.sku] += each.units
        return {each.sku: known[each.sku] - each.available for each in Product.objects.filter(sku__in=known)}

    def load(self, lines: Sequence[Line]) -> None:
        """Read the stock of `lines` from the database into every shard that doesn't have it."""
        for product in find_products(lines).values():
            self._load(product.sku)

    def _load(self, sku: str) -> None:
        first = self.shards[0]
        (epoch,) = run("gate_begin", [first.stock(sku), first.skus], [uuid4().hex, sku])
        available = find_products([Line(sku, 1)])[sku].available  # read after the epoch has begun, not before
        for units in run("gate_publish", [first.stock(sku)], [epoch, max(0, available)]):
            each, rest = divmod(units, len(self.shards))
            for number, shard in enumerate(self.shards):
                run("gate_load", [shard.stock(sku)], [epoch, each + (number < rest), int(number == 0)])

    def _take_or_rest(self, sale: Sale) -> Hold:
        if time.monotonic() < self._rests_until:
            return Hold(sale.id)
        try:
            return self._take(sale)
        except BackendUnavailable as error:
            logger.warning("%s; selling from the database alone for %g s", error, REST)
            self._rests_until = time.monotonic() + REST
            return Hold(sale.id)

    def _take(self, sale: Sale) -> Hold:
        for _ in range(self.tries):
            try:
                return self._try(sale)
            except NotLoaded:
                self.load(sale.lines)
        raise Busy("the stock in Redis was dropped as often as it was loaded", retry_after=0.1)

    def _try(self, sale: Sale) -> Hold:
        wanted = {line.sku: line.quantity for line in sale.lines}
        shard = random.choice(self.shards)  # noqa: S311
        try:
            return Hold(sale.id, [(shard, shard.take(sale.id, wanted, whole=True))])
        except SoldOut:
            if len(self.shards) == 1:
                raise
            return self._span(sale.id, wanted)

    def _span(self, sale: UUID, wanted: Mapping[str, int]) -> Hold:
        """Take from one shard after another.

        Two carts may each get a part of what only suffices for one. Both give back, and the later one of
        them finds all of it and tries again: somebody is served.
        """
        for _ in range(self.tries):
            hold = Hold(sale)
            if self._gathered(hold, dict(wanted)):
                return hold
            self._void(hold)
            if short := shortages(wanted, self._left(wanted)):
                raise SoldOut(short)
        raise Busy("other carts hold parts of what this one needs", retry_after=0.1)

    def _gathered(self, hold: Hold, wanted: dict[str, int]) -> bool:
        try:
            for shard in self.shards:
                hold.taken.append((shard, shard.take(hold.sale, wanted, whole=False)))
                for each in hold.taken[-1][1]:
                    wanted[each.sku] -= each.units
                wanted = {sku: units for sku, units in wanted.items() if units}
                if not wanted:
                    return True
        except BaseException:
            self._void(hold)
            raise
        return False

    def _end(self, hold: Hold, how: Callable[[Hold], None]) -> None:
        try:
            how(hold)
        except BackendUnavailable as unavailable:
            self._rests_until = time.monotonic() + REST
            logger.warning("%s; the ledger's entry of %s is left to reconcile", unavailable, hold.sale)

    def _settle_all(self, hold: Hold) -> None:
        for shard, taken in hold.taken:
            self._settle(shard, hold.sale, taken)

    def _void_and_drop(self, hold: Hold) -> None:
        """Give back what the database refused: the stock in Redis is too high, and is read again."""
        self._void(hold)
        self.drop(each.sku for _, taken in hold.taken for each in taken)

    def _settle(self, shard: Shard, sale: UUID, taken: Sequence[Taken]) -> None:
        if taken and not shard.settle(sale, taken):
            self.drop(each.sku for each in taken)

    def _void(self, hold: Hold) -> None:
        for shard, taken in hold.taken:
            if taken:
                shard.void(hold.sale, taken)

    def _left(self, skus: Iterable[str]) -> dict[str, int]:
        totals: dict[str, int] = {}
        for shard in self.shards:
            for sku, units in shard.left(skus).items():
                totals[sku] = totals.get(sku, 0) + units
        return totals

    def _is_current(self, shard: Shard, taken: Taken) -> bool:
        with answering() as server:
            return bool(server.hget(shard.stock(taken.sku), "epoch") == taken.epoch)

    def _rebuild(self) -> int:
        """Drop what disagrees with the database while nobody is at work on it; needless drops do no harm."""
        with answering() as server:
            skus = set(server.smembers(self.shards[0].skus))
        busy = {each.sku for shard in self.shards for taken in shard.pending().values() for each in taken}
        drifted = [sku for sku, units in self.drift(skus - busy).items() if units]
        self.drop(drifted)
        return len(drifted)


def _made(pending: Mapping[UUID, Sequence[Taken]]) -> set[UUID]:
    """Return the sales that the database has: each wrote a movement for each of its lines."""
    causes = {f"order:{sale}:{taken[0].sku}": sale for sale, taken in pending.items()}
    return {
        causes[cause]
        for cause in StockMovement.objects.filter(cause__in=causes).values_list("cause", flat=True)
    }

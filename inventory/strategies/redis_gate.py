"""Refusals that cost one request to a shared cache; the database sells."""

from __future__ import annotations

import logging
from time import monotonic
from typing import Any, ClassVar, Final
from urllib.parse import quote

from django.conf import settings as django_settings
from django.core.cache import caches
from django.core.checks import CheckMessage, Error

from inventory.conf import AliasSettings
from inventory.exceptions import Shortage, SoldOut
from inventory.hooks import reach
from inventory.strategies.base import Sale, Strategy

logger = logging.getLogger(__name__)

REST: Final = 1.0
"""Seconds for which a cache that failed isn't asked again."""


class RedisGate(Strategy):
    """Idea:
        When the database refuses an item, all processes remember for a moment how much was left, in a cache
        that they share. The cache alone refuses a larger request meanwhile. A delivery, a return
        or a cancellation removes the note after its commit.

    Interleaving:
        The database refuses A, 0 left, which is noted. B asks for 1 and is refused with no transaction. A
        delivery of 5 commits and removes the note: C buys.

    Verdict:
        Exact: the cache refuses, and never sells. A note that is written late, or whose removal was lost,
        refuses what is there for `seconds` at most; then the database is asked again.

    Cost:
        One request per sale, and one per refusal. Without the cache the database decides alone.

    Options:
        cache: alias of `CACHES`, of a Redis or another shared one. seconds: how long a refusal is remembered.
    """

    name: ClassVar[str] = "redis_gate"
    leads: ClassVar[bool] = False

    def __init__(self, settings: AliasSettings, cache: str = "default", seconds: float = 2.0) -> None:
        super().__init__(settings)
        if not 0 < seconds <= 60:
            raise ValueError(f"seconds is above 0 and at most 60, not {seconds!r}")
        self.cache, self.seconds = cache, seconds
        self._rests_until = 0.0

    def sell(self, sale: Sale) -> None:
        """Ask the gate, then the database; note what the database refuses."""
        keys = {self._key(line.sku): line for line in sale.lines}
        left = self._ask("get_many", list(keys)) or {}
        short = [
            Shortage(*line, left[key])
            for key, line in keys.items()
            if left.get(key, line.quantity) < line.quantity
        ]
        if short and not sale.repeated():
            reach("read", on_hand={each.sku: each.available for each in short})
            raise SoldOut(short)
        if short:
            return
        try:
            sale.in_transaction()
        except SoldOut as refused:
            notes = {self._key(short.sku): short.available for short in refused.shortages}
            self._ask("set_many", notes, timeout=self.seconds)
            raise

    def stock_changed(self, skus: set[str]) -> None:
        """Open the gate for items of which there may be more."""
        self._ask("delete_many", [self._key(sku) for sku in skus])

    def check(self) -> list[CheckMessage]:
        """Refuse a cache that other processes don't see."""
        backend = django_settings.CACHES.get(self.cache, {}).get("BACKEND", "")
        if not backend:
            return [
                Error(
                    f"redis_gate's cache is {self.cache!r}, which CACHES doesn't have.", id="inventory.E004"
                )
            ]
        if "locmem" in backend or "dummy" in backend:
            return [
                Error(
                    f"redis_gate's cache {self.cache!r} is {backend}, which other processes don't see.",
                    hint="Name a Redis cache: INVENTORY['…']['OPTIONS'] = {'CACHE': '…'}.",
                    id="inventory.E005",
                )
            ]
        return []

    def _key(self, sku: str) -> str:
        return f"inventory:{self.settings.alias}:left:{quote(sku, safe='')}"

    def _ask(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        """Call the cache; while it fails, the database decides alone."""
        if monotonic() < self._rests_until:
            return None
        try:
            return getattr(caches[self.cache], verb)(*args, **kwargs)
        except Exception as error:  # each client has its own errors; none of them may stop a sale
            self._rests_until = monotonic() + REST
            logger.warning(
                "redis_gate: the cache %r failed (%s); the database decides alone", self.cache, error
            )
            return None

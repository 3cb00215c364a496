"""The raw Redis under the strategies that use it by hand: stock in keys, and locks written by hand.

Units in Redis are a copy that refuses quickly; the database has the last word. Whatever goes wrong between
the two, the copy may end up too high, which the database then refuses, or too low only until it is dropped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import redis
from django.conf import settings
from django.core.signals import setting_changed
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisClusterException
from redis.retry import Retry

from locking import BackendUnavailable
from orders.lab.cart import Cart, SoldOut, required, shortages
from orders.lab.models import Product

_LUA = Path(__file__).parent / "lua"


@cache
def client() -> Any:
    """Return the process's client, which never repeats a command by itself.

    A repeated script whose first reply was lost would take the units twice.
    """
    # A connection per thread, however many: redis-py refuses the 101st, as though Redis were down.
    options = {
        "socket_timeout": 5, "socket_connect_timeout": 2, "decode_responses": True, "max_connections": 2**31,
        "retry": Retry(NoBackoff(), 0),
    }  # fmt: skip
    server = redis.RedisCluster if settings.REDIS_CLUSTER else redis.Redis
    return server.from_url(settings.REDIS_URL, **options)


@setting_changed.connect
def _on_setting_changed(*, setting: str, **_: object) -> None:
    if setting in ("REDIS_URL", "REDIS_CLUSTER"):
        client.cache_clear()


@contextmanager
def answering() -> Iterator[Any]:
    """Give the client to the block.

    Raises:
        BackendUnavailable: Redis doesn't answer or refuses; whether it did what it was asked is unknown.
    """
    try:
        yield client()
    except (redis.RedisError, RedisClusterException) as error:
        raise BackendUnavailable(
            f"Redis can't be used ({error}); is it running, and writable? REDIS_URL names it"
        ) from error


@cache
def _script(name: str) -> tuple[str, str]:
    """Return a script's text and the name under which a server keeps it."""
    text = (_LUA / f"{name}.lua").read_text()
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def run(script: str, keys: Sequence[str], args: Sequence[object]) -> list[Any]:
    """Run `lua/<script>.lua`, atomic on the server. The text is sent only to a server that lacks it."""
    text, name = _script(script)
    with answering() as server:
        try:
            return cast("list[Any]", server.evalsha(name, len(keys), *keys, *args))
        except NoScriptError:
            return cast("list[Any]", server.eval(text, len(keys), *keys, *args))


def drop(keys: Iterable[str]) -> None:
    """Delete `keys`."""
    with answering() as server:
        for key in keys:  # one by one: in a cluster they may lie on several servers
            server.delete(key)


class RedisStock:
    """The units of products in Redis, taken all or nothing by one script.

    Args:
        name: keys begin with it; in a cluster, one script needs all of its keys in one slot.
        ledger: whether the script also writes down whose units they are, until `settle` strikes the entry.
    """

    def __init__(self, name: str, *, ledger: bool = False) -> None:
        self._tag, self._ledger = f"{{lab:{name}}}", ledger

    def key(self, sku: str) -> str:
        """Return the key of a product's units."""
        return f"{self._tag}:stock:{sku}"

    @property
    def ledger(self) -> str:
        """The key of the pending sales: by their ids, when they began and what they took."""
        return f"{self._tag}:ledger"

    def take(self, cart: Cart) -> None:
        """Take every line or nothing; load the stock from the database where Redis hasn't got it.

        Raises:
            SoldOut: naming every short line. UnknownProduct: loading found none.
            BackendUnavailable: no answer; units may be gone from Redis.
        """
        entry = [str(cart.id), json.dumps(cart.wanted)] if self._ledger else ["", ""]
        while True:
            verdict, *left = run("take", self._keys(cart.skus), [*entry, *map(cart.wanted.get, cart.skus)])
            if verdict == "taken":
                return
            if verdict == "short":
                raise SoldOut(shortages(cart.wanted, dict(zip(cart.skus, left, strict=True))))
            found = {product.sku: product for product in Product.objects.filter(sku__in=cart.skus)}
            self.load(required(cart.skus, found).values())

    def load(self, products: Iterable[Product]) -> None:
        """Set the units of products that aren't there yet, as read from the database."""
        with answering() as server:
            for product in products:
                server.set(self.key(product.sku), product.on_hand, nx=True)

    def settle(self, cart: UUID) -> None:
        """Strike the ledger's entry of a sale that is committed."""
        with answering() as server:
            server.hdel(self.ledger, str(cart))

    def give_back(self, cart: UUID, wanted: Mapping[str, int]) -> None:
        """Return the units of a sale that failed. A stock that is gone stays gone."""
        run("give_back", self._keys(wanted), [str(cart) if self._ledger else "", *wanted.values()])

    def drop(self, skus: Iterable[str]) -> None:
        """Remove the units of products; the next buyer loads them again."""
        drop(map(self.key, skus))

    def pending(self, older_than: float) -> dict[UUID, dict[str, int]]:
        """Return the ledger's entries of at least that age in seconds."""
        with answering() as server:
            now, entries = float(server.time()[0]), server.hgetall(self.ledger)
        read = {UUID(cart): entry.split(" ", 1) for cart, entry in entries.items()}
        return {cart: json.loads(rest) for cart, (at, rest) in read.items() if now - float(at) >= older_than}

    def _keys(self, skus: Iterable[str]) -> list[str]:
        return [self.ledger, *map(self.key, skus)]

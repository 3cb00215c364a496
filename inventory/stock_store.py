"""The raw Redis under the strategies that use it by hand: stock in keys, and the locks that everyone writes
first.

Units in Redis are a copy that serves refusals quickly; the database has the last word. Whatever goes wrong
between the two, the copy may only end up too high (the database then refuses) or too low until
`Strategy.reconcile` rebuilds it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, cast

import redis
from django.conf import settings
from django.core.signals import setting_changed
from redis.backoff import NoBackoff
from redis.cluster import PRIMARY, ClusterNode
from redis.exceptions import NoScriptError, RedisClusterException
from redis.retry import Retry

from inventory.domain import Line, Shortage, SoldOut
from inventory.progress import SaleProgress
from locking import BackendUnavailable

logger = logging.getLogger(__name__)

Taken = Mapping[str, int]
"""Units that were taken, by key."""

_LUA = Path(__file__).parent / "lua"


class _Cluster(redis.RedisCluster):
    """A cluster whose slots move to a master that has none yet: an ASK names it before redis-py knows it."""

    def get_node(self, host: Any = None, port: Any = None, node_name: Any = None) -> Any:
        """See redis-py, which returns None for that one, and fails on it."""
        node = super().get_node(host, port, node_name)  # type: ignore[no-untyped-call]
        if node is None and node_name:
            there, _, number = node_name.rpartition(":")
            node = self.nodes_manager.nodes_cache.setdefault(
                node_name, ClusterNode(there, int(number), PRIMARY)
            )
        return node


@cache
def client() -> Any:
    """Return the process's client. It never repeats a command by itself.

    A repeated script whose first reply was lost would take the units twice, and a repeated SET NX would say
    that the lock is another's. The caller is told that the outcome is unknown instead.
    """
    # A connection for each thread, however many: redis-py refuses the 101st, as though Redis were down.
    options = {
        "socket_timeout": 5, "socket_connect_timeout": 2, "decode_responses": True, "max_connections": 2**31,
    }  # fmt: skip
    if settings.REDIS_CLUSTER:
        return _Cluster.from_url(settings.REDIS_URL, retry=Retry(NoBackoff(), 0), **options)
    return redis.Redis.from_url(settings.REDIS_URL, retry=Retry(NoBackoff(), 0), **options)


@cache
def _script(name: str) -> tuple[str, str]:
    """Return a script's text and the name under which a server keeps it."""
    text = (_LUA / f"{name}.lua").read_text()
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


@setting_changed.connect
def _on_setting_changed(*, setting: str, **_: object) -> None:
    if setting in ("REDIS_URL", "REDIS_CLUSTER"):
        client.cache_clear()


@contextmanager
def answering() -> Iterator[Any]:
    """Give the client to the block.

    Raises:
        BackendUnavailable: Redis doesn't answer, or refuses because it is a replica, its memory is full, or
            its disk can't be written. Whether it did what it was asked is not known.
    """
    try:
        yield client()
    except (redis.RedisError, RedisClusterException) as error:
        raise BackendUnavailable(
            f"Redis can't be used ({error}); is it running, and writable? REDIS_URL names it"
        ) from error


def run(script: str, keys: Sequence[str], args: Sequence[object]) -> list[Any]:
    """Run `lua/<script>.lua`, atomic on the server. The text is sent only to a server that lacks it."""
    text, name = _script(script)
    with answering() as server:
        try:
            return cast("list[Any]", server.evalsha(name, len(keys), *keys, *args))
        except NoScriptError:
            return cast("list[Any]", server.eval(text, len(keys), *keys, *args))


class _NotLoaded(Exception):
    """Redis doesn't know the stock of a line: it was never loaded, or was lost."""


def take(
    lines: Sequence[Line],
    keys: Sequence[str],
    load_stock: Callable[[], Mapping[str, int]],
) -> Taken:
    """Take every line or nothing.

    Args:
        lines: what is wanted.
        keys: of the units, one a line.
        load_stock: returns the units of every key from the database; called when Redis has lost them.

    Raises:
        SoldOut: naming the short lines.
        BackendUnavailable: no answer; units may be gone from Redis until it is reconciled.
    """
    for overwrite in (False, True):
        with suppress(_NotLoaded):
            return _take(lines, keys)
        load(load_stock(), overwrite=overwrite)
    return _take(lines, keys)


def _take(lines: Sequence[Line], keys: Sequence[str]) -> Taken:
    verdict, *numbers = run("take", keys, [line.quantity for line in lines])
    if verdict == "missing":
        raise _NotLoaded
    if verdict == "short":
        left = zip(lines, numbers, strict=True)
        raise SoldOut(Shortage(line.sku, line.quantity, n) for line, n in left if n < line.quantity)
    return dict(zip(keys, numbers, strict=True))


@contextmanager
def returned_on_failure(taken: Taken, progress: SaleProgress) -> Iterator[None]:
    """Give `taken` back unless the block's sale was committed: Redis must not keep what no order has.

    Where the outcome is unknown they go back, too: Redis may be too high, and the database then refuses.
    """
    try:
        yield
    except BaseException as error:
        if not progress.committed:
            _undo(taken, error)
        raise


def _undo(taken: Taken, error: BaseException) -> None:
    try:
        if isinstance(error, SoldOut):  # Redis had let it through: it is too high, and is read again
            drop(taken)
        else:
            run("give_back", list(taken), list(taken.values()))
    except BackendUnavailable as unavailable:  # the body's own error matters more
        logger.warning("%s; the units are left to reconcile: %s", unavailable, dict(taken))


def load(stock: Mapping[str, int], *, overwrite: bool) -> None:
    """Set every key of `stock`, all or none; without `overwrite` only if none of them exists."""
    with answering() as server:
        if overwrite:
            server.mset(dict(stock))
        else:
            server.msetnx(dict(stock))


def stored(pattern: str) -> dict[str, int]:
    """Return the units of every key that matches `pattern`; a key that ends meanwhile is left out."""
    with answering() as server:
        units = {key: server.get(key) for key in server.scan_iter(pattern)}
    return {key: int(number) for key, number in units.items() if number is not None}


def drop(keys: Iterable[str]) -> None:
    """Delete `keys`."""
    doomed = list(keys)
    if doomed:
        with answering() as server:
            server.delete(*doomed)

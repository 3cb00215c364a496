"""One strategy from the delivery to the audit."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests.load import audit, crowd, journal
from tests.load.buyers import TRIES, Crowd, Visit, buy
from tests.load.delivery import deliver
from tests.load.faults import Fault, strike
from tests.load.schedule import Schedule
from tests.load.servers import Servers
from tests.load.shop import Shop, serving
from tests.load.wire import Wire

PRODUCTS = 5
CLOSING_SECONDS = 60.0  # a dead holder's lease may have to end first
LONG_TIME = 20.0

_AVAILABLE = """
SELECT level.available FROM inventory_level level JOIN inventory_item item ON item.id = level.item_id
 WHERE item.sku = %s
"""


@dataclass(frozen=True)
class Plan:
    """How a strategy is tried.

    Args:
        rate: buyers per second in the open model.
        seconds: how long they come.
        faults: what happens meanwhile.
        locust: seconds of locust's users afterwards; 0 for none.
        workers, threads: of the web server.
        seed: of baskets and victims.
    """

    rate: float
    seconds: float
    faults: Sequence[Fault]
    locust: float = 3.0
    workers: int = 2
    threads: int = 8
    seed: int = 1


@dataclass(frozen=True)
class Subject:
    """A strategy.

    Attributes:
        name: as in the setting CHECKOUT_STRATEGY.
    """

    name: str


def try_out(subject: Subject, plan: Plan, servers: Servers, settings: Mapping[str, str]) -> dict[str, Any]:
    """Serve the shop with this strategy, load it, hurt it, and audit it.

    Args:
        subject: the strategy.
        plan: how.
        servers: the shop's; their tables are made.
        settings: further environment of the shop.
    """
    schedule = Schedule(plan.rate, plan.seconds, _skus(subject.name), plan.seed)
    environment = servers.environment | dict(settings) | {"CHECKOUT_STRATEGY": subject.name}
    workers = plan.workers
    with tempfile.TemporaryDirectory(prefix="holdfast-load-") as directory, servers.connect() as database:
        folder = Path(directory)
        _stock_up(database, schedule)
        with serving(environment, workers=workers, threads=plan.threads) as shop:
            keyed = knows_keys(shop, database)
            begun = time.monotonic()
            visits, struck = _open_model(schedule, plan, shop, servers, folder, keyed=keyed)
            users = crowd.run(shop, schedule.skus, folder, plan.locust)
            closing = _close(servers, shop, schedule.skus, folder, tries=TRIES if keyed else 1)
        with servers.connect() as fresh:  # a crash of PostgreSQL has ended the first one
            rows = audit.read_rows(fresh, schedule.skus)
    story = closing
    verdict = audit.judge(rows, story, closed=True)
    return {
        "name": subject.name,
        "seconds": time.monotonic() - begun,
        "workers": workers,
        "keyed": keyed,
        "visits": visits,
        "faults": struck,
        "locust": users,
        "asked": len(story.baskets),
        "orders": len(rows.orders),
        "acknowledged": sum(map(len, story.orders.values())),
        "unknown": len(story.unknown),
        "verdict": verdict.as_dict(),
    }


def _skus(strategy: str) -> tuple[str, ...]:
    run = secrets.token_hex(3)
    return tuple(f"{strategy.replace('_', '-')}-{run}-{number}" for number in range(PRODUCTS))


def _stock_up(database: psycopg.Connection, schedule: Schedule) -> None:
    """Deliver less of the first two products than the buyers want, and more of the others."""
    demand = list(schedule.demand().values())
    units = [max(1, wanted // 2) if number < 2 else wanted + 10 for number, wanted in enumerate(demand)]
    deliver(database, dict(zip(schedule.skus, units, strict=True)))


def knows_keys(shop: Shop, database: psycopg.Connection) -> bool:
    """Return whether the shop answers a second request of the same Idempotency-Key with the first order."""
    sku = f"keyed-{secrets.token_hex(3)}"
    deliver(database, {sku: 10})
    with Wire(shop.address, LONG_TIME) as wire:
        request = wire.post("/checkout/", {"lines": [{"sku": sku, "quantity": 1}]}, {"Idempotency-Key": sku})
        first, second = wire.ask(request), wire.ask(request)
    if first.status != 201:
        raise RuntimeError(f"the shop doesn't sell: {first.status} {first.body[:300]!r}")
    return second.status in (200, 201) and first.json()["id"] == second.json()["id"]


def _open_model(
    schedule: Schedule, plan: Plan, shop: Shop, servers: Servers, folder: Path, *, keyed: bool
) -> tuple[list[Visit], list[dict[str, object]]]:
    buyers = Crowd(shop.address, schedule, folder, keyed=keyed)
    struck = strike(plan.faults, shop, servers, start=buyers.start, seconds=plan.seconds, seed=plan.seed)
    return buyers.visits(), struck


def _close(servers: Servers, shop: Shop, skus: Sequence[str], folder: Path, *, tries: int) -> journal.Story:
    """Ask for all that is left of each product, then for one unit more; return all buyers' story.

    Every unit on hand must be for sale: the first is served, the second refused. A buyer refused as
    busy asks again: the lease of a killed holder may have to end first. So does a buyer with an unknown
    outcome, if the shop knows keys: a thread that slept through a crash of the database finds its
    connection dead.
    """
    path = folder / "closing.jsonl"
    deadline = time.monotonic() + CLOSING_SECONDS
    with Wire(shop.address, LONG_TIME) as wire, journal.Journal(path) as book, servers.connect() as database:
        for sku in skus:
            for wanted in (_left(database, sku), 1):
                _buy_patiently(wire, book, sku, wanted, deadline, tries)
    return journal.read(sorted(folder.glob("*.jsonl")))


def _left(database: psycopg.Connection, sku: str) -> int:
    row = database.execute(_AVAILABLE, [sku]).fetchone()
    return int(row[0]) if row else 0


def _buy_patiently(
    wire: Wire, book: journal.Journal, sku: str, units: int, deadline: float, tries: int
) -> None:
    while units > 0:
        key = f"closing.{secrets.token_hex(8)}"
        book.asked(key, {sku: units})
        status = buy(wire, book, key, {sku: units}, tries=tries)
        if status != 503 or time.monotonic() > deadline:
            return
        time.sleep(0.2)  # asks again until the shop isn't busy

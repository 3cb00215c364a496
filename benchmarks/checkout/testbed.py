"""Where the benchmark runs: private servers, the served shop, the crowd, and the totals of each run."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psycopg

from benchmarks.checkout.clients import Burst, Crowd
from benchmarks.checkout.subjects import Subject
from benchmarks.server import Work
from config.serve import server
from tests.load.delivery import deliver
from tests.load.figures import percentile
from tests.load.servers import Servers, private_servers
from tests.load.shop import Command, Shop, cpu_seconds, manage, serving
from tests.load.wire import Wire, pack

SETTINGS = {"DJANGO_SETTINGS_MODULE": "benchmarks.checkout.settings"}
COUNTED = 20  # requests whose SQL statements are counted

_TOTALS = """
SELECT coalesce(sum(level.available), 0), coalesce(min(level.available), 0),
       coalesce((SELECT sum(quantity) FROM orders_orderitem i JOIN orders_product p ON p.id = i.product_id
                  WHERE p.sku = ANY(%(skus)s)), 0),
       (SELECT count(DISTINCT order_id) FROM orders_orderitem i JOIN orders_product p ON p.id = i.product_id
         WHERE p.sku = ANY(%(skus)s))
  FROM inventory_level level JOIN inventory_item item ON item.id = level.item_id WHERE sku = ANY(%(skus)s)
"""
_BY_HAND = """
SELECT coalesce(sum(p.on_hand), 0), coalesce(min(p.on_hand), 0),
       coalesce((SELECT sum(quantity) FROM orders_orderitem WHERE product_id = ANY(array_agg(p.id))), 0),
       (SELECT count(DISTINCT order_id) FROM orders_orderitem WHERE product_id = ANY(array_agg(p.id)))
  FROM lab_product p WHERE p.sku = ANY(%(skus)s)
"""
_STOCK_UP_BY_HAND = """
INSERT INTO lab_product (id, sku, name, price, on_hand, version, guarded)
SELECT id, sku, name, price, %s, 0, false FROM orders_product WHERE sku = ANY(%s)
"""


class Totals(NamedTuple):
    """What the database says of the products of one run: units left, the lowest stock, units sold, orders."""

    left: int
    lowest: int
    sold: int
    orders: int


class Meter(NamedTuple):
    """Processor seconds of the shop, of PostgreSQL and of Redis, and Redis's requests, at one moment."""

    web: float
    postgres: float
    redis: Work


@dataclass
class Testbed:
    """The running shop and everything around it."""

    servers: Servers
    shop: Shop
    crowd: Crowd
    database: psycopg.Connection
    _runs: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _spent: dict[int, float] = field(default_factory=dict)
    _name: str = field(default_factory=lambda: f"bench-{secrets.token_hex(3)}")

    def run(
        self, subject: Subject, *, buyers: int, seconds: float, products: int = 1, stock: int = 1_000_000
    ) -> dict[str, Any]:
        """Let buyers rush at fresh products; return the figures, and how far the totals are from exact."""
        skus = self._stock_up(products, stock)
        meters: list[Meter] = []
        requests = self._requests(subject, skus)
        first = self._open(requests) if subject.sells and products == 1 and stock else 0
        burst = self.crowd.burst(
            requests,
            buyers=buyers,
            seconds=seconds,
            warm=min(0.4, seconds / 2),
            probe=lambda: meters.append(self._meter()),
        )
        begun, ended = meters
        burst.total[201] += first
        return _figures(burst, begun, ended) | self._faults(subject, burst, skus, products * stock)

    def _open(self, requests: list[bytes]) -> int:
        """Let one buyer come before the rush, who opens what is opened once."""
        with Wire(self.shop.address, timeout=20) as wire:
            return sum(wire.ask(request).status == 201 for request in requests)

    def statements(self, subject: Subject) -> float:
        """Return how many statements of one checkout PostgreSQL's log has, BEGIN and COMMIT included."""
        request = self._requests(subject, self._stock_up(1, 1_000_000))[0]
        with Wire(self.shop.address, timeout=20) as wire, self._set(log_min_duration_statement=0):
            for _ in range(3 * COUNTED):  # every connection of the pool has heard of the setting by then
                wire.ask(request)
            before = self._log_lines()
            for _ in range(COUNTED):
                wire.ask(request)
            counted = self._log_lines() - before
            assert counted, "PostgreSQL's log has no statement: is the setting given elsewhere, too?"
            return counted / COUNTED

    def _stock_up(self, products: int, stock: int) -> list[str]:
        run = next(self._runs)
        skus = [f"{self._name}-{run}-{number}" for number in range(products)]
        deliver(self.database, dict.fromkeys(skus, stock))
        self.database.execute(_STOCK_UP_BY_HAND, [stock, skus])
        return skus

    def _requests(self, subject: Subject, skus: list[str]) -> list[bytes]:
        choice = {"strategy": subject.strategy} if subject.strategy else {}
        return [
            pack(self.shop.address, subject.path, {"lines": [{"sku": sku, "quantity": 1}], **choice}, {})
            for sku in skus
        ]

    def _meter(self) -> Meter:
        return Meter(self.shop.cpu_seconds(), self._postgres_seconds(), self._redis_work())

    def _postgres_seconds(self) -> float:
        """Return what PostgreSQL's processes have used, those included that have ended since."""
        postmaster = self.servers.postgres.process()
        assert postmaster is not None
        for process in (postmaster, *postmaster.children()):
            self._spent[process.pid] = max(self._spent.get(process.pid, 0.0), cpu_seconds(process))
        return sum(self._spent.values())

    def _redis_work(self) -> Work:
        with self.servers.redis.client() as client:
            facts: dict[str, Any] = client.info("everything")
        cpu = facts["used_cpu_user"] + facts["used_cpu_sys"]
        return Work(facts["total_reads_processed"], facts["total_commands_processed"], cpu)

    def _faults(self, subject: Subject, burst: Burst, skus: list[str], stocked: int) -> dict[str, Any]:
        if not subject.sells:
            return {"oversold": 0, "unaccounted": 0, "lost": 0, "failed": burst.total[500]}
        totals = self.totals(skus, by_hand=subject.strategy is None)
        return {
            "oversold": max(0, totals.sold - stocked) + max(0, -totals.lowest),
            "unaccounted": abs(stocked - totals.sold - totals.left),
            "lost": abs(burst.total[201] - totals.orders),
            "failed": burst.total[500],
        }

    def totals(self, skus: list[str], *, by_hand: bool = False) -> Totals:
        """Return what the database says of these products, in the shop's tables or in those sold by hand."""
        question = _BY_HAND if by_hand else _TOTALS
        return Totals(*map(int, self.database.execute(question, {"skus": skus}).fetchone() or ()))

    @contextmanager
    def _set(self, **settings: int) -> Iterator[None]:
        for name, value in settings.items():
            self.database.execute(f"ALTER SYSTEM SET {name} = {value}")
        self.database.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            for name in settings:
                self.database.execute(f"ALTER SYSTEM RESET {name}")
            self.database.execute("SELECT pg_reload_conf()")

    def _log_lines(self) -> int:
        text = self.servers.postgres.log.read_text(errors="replace")
        return text.count("ms  statement: ") + text.count("ms  execute ")


def _figures(burst: Burst, begun: Meter, ended: Meter) -> dict[str, Any]:
    return {
        "answers_per_second": burst.per_second,
        "sold_per_second": burst.counted[201] / burst.seconds,
        "statuses": {str(status): n for status, n in sorted(burst.counted.items())},
        "unanswered": burst.lost,
    } | _by_answer(burst, begun, ended)


def _by_answer(burst: Burst, begun: Meter, ended: Meter) -> dict[str, float]:
    """Return latencies and costs; nothing for a window without an answer, of which there are none."""
    answers = sum(burst.counted.values())
    if not answers:
        return {}
    redis = ended.redis.since(begun.redis)
    latencies = sorted(burst.latencies)
    return {
        "median_ms": percentile(latencies, 50) * 1000,
        "p99_ms": percentile(latencies, 99) * 1000,
        "web_cpu_us": (ended.web - begun.web) / answers * 1e6,
        "postgres_cpu_us": (ended.postgres - begun.postgres) / answers * 1e6,
        "redis_cpu_us": redis.cpu / answers * 1e6,
        "redis_requests": max(0, redis.requests) / answers,
        "client_cpu_us": burst.cpu / answers * 1e6,
    }


@contextmanager
def open_servers() -> Iterator[Servers]:
    """Start private servers with the shop's tables."""
    with private_servers() as servers:
        done = manage(servers.environment, "migrate", "--verbosity", "0")
        if done.returncode:
            raise RuntimeError(f"the tables could not be made: {done.stderr.strip()}")
        yield servers


@contextmanager
def open_testbed(
    servers: Servers, workers: int, threads: int, command: Command = server, **settings: str
) -> Iterator[Testbed]:
    """Serve the shop by a web server and have a crowd before its door; `settings` are the shop's."""
    environment = servers.environment | SETTINGS | settings
    with (
        serving(environment, workers=workers, threads=threads, command=command) as shop,
        Crowd(shop.address) as crowd,
        servers.connect() as database,
    ):
        yield Testbed(servers, shop, crowd, database)

"""Explores one sale over HTTP: each fault at each exchange with a server, and then what the client was told.

One product has one unit and one buyer. So an answer can be judged without the code under test: an order is
there or not, and a unit that isn't sold must be for sale.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from django.db import connection
from django.test import Client, override_settings

from inventory import tasks
from inventory.checkpoints import installed
from inventory.models import Product, StockClaim
from inventory.reserving_strategy import ReservingStrategy
from inventory.strategies import STRATEGIES, get_strategy
from orders.models import Order
from tests.factories import ProductFactory
from tests.inventory.interleaving import eventually
from tests.inventory.steps import STEPS
from tests.inventory.totals import totals_of
from tests.orders.faults.transport import DATABASE, FAULTS, KILLS, REDIS, Step, Transport, close_all

NOTHING_ORDERED = {"sold-out", "busy", "unavailable", "customer-limit", "key-in-progress"}
"""Types of problems that promise: this request ordered nothing."""

KEY = "k-{}"


@dataclass(frozen=True)
class Point:
    """One fault of one sale: of which strategy, at which exchange, which fault, and with a key or without."""

    strategy: str
    number: int
    step: Step
    fault: str
    keyed: bool
    cold: bool
    may_be_unknown: bool

    def __str__(self) -> str:
        key = "with a key" if self.keyed else "without a key"
        stock = ", its stock not loaded" if self.cold else ""
        return f"{self.strategy} {key}{stock}: {self.fault} at {self.number} ({self.step})"


@dataclass(frozen=True)
class Answer:
    """What the client was told: a status, the type of a problem or `placed`, and an order's id."""

    status: int
    kind: str
    order: str = ""


@dataclass(frozen=True)
class Course:
    """How a sale goes when nothing fails: its exchanges, and the first one after the order is written."""

    steps: tuple[Step, ...]
    written: int


def predictable() -> None:
    """Let strategies that choose at random take the same way each time: points are numbered by it."""
    random.seed(7)


class Violation(AssertionError):
    """An answer wasn't true, or a unit was lost."""


def post(sku: str, key: str | None = None) -> Answer:
    """Ask for one unit."""
    headers = {"Idempotency-Key": key} if key else {}
    body = json.dumps({"lines": [{"sku": sku, "quantity": 1}]})
    client = Client(raise_request_exception=False)
    response = client.post("/checkout/", body, content_type="application/json", headers=headers)
    if response["Content-Type"] == "application/json":
        return Answer(response.status_code, "placed", str(response.json()["id"]))
    if "problem" not in response["Content-Type"]:
        return Answer(response.status_code, "server-error")
    return Answer(response.status_code, response.json()["type"].removeprefix("/problems/#"))


def course(strategy: str, *, keyed: bool, cold: bool) -> Course:
    """Let a sale go well, and return its exchanges; one before it has Redis learn the scripts."""
    with override_settings(CHECKOUT_STRATEGY=strategy):
        post(stock_up(strategy, cold=cold))
    sku = stock_up(strategy, cold=cold)
    written = "recorded" if "recorded" in STEPS[strategy].split() else "decided"
    numbers: list[int] = []
    transport = Transport()

    def note(name: str, /, **facts: object) -> None:
        if name == written:
            numbers.append(len(transport.steps))

    predictable()
    with override_settings(CHECKOUT_STRATEGY=strategy), transport.installed(), installed(note):
        answer = post(sku, KEY.format(sku) if keyed else None)
    assert answer.kind == "placed", f"{strategy} can't sell even if nothing fails: {answer}"
    return Course(tuple(transport.steps), numbers[-1])


def points(strategy: str, *, keyed: bool, cold: bool, faults: Iterable[str] | None = None) -> Iterator[Point]:
    """Yield every point of a sale, or those of the given faults."""
    usual = course(strategy, keyed=keyed, cold=cold)
    for number, step in enumerate(usual.steps):
        unknown = step.server == DATABASE and number >= usual.written
        for fault in faults or FAULTS[step.server]:
            if fault in FAULTS[step.server] or fault in KILLS:
                yield Point(strategy, number, step, fault, keyed, cold, unknown)


def stock_up(strategy: str, *, cold: bool) -> str:
    """Return a new product with one unit; unless `cold`, the strategy's copy of the stock is loaded."""
    for each in STRATEGIES.values():
        if issubclass(each, ReservingStrategy):
            each.gate._rests_until = 0.0
    product: Product = ProductFactory.create(on_hand=1)
    if not cold and STRATEGIES[strategy].keeps_stock:
        get_strategy(strategy).prepare([product])
    return product.sku


Send = Callable[[Point, str, str | None], Answer | None]
"""Sends the request that fails; returns None when its process was killed."""


def in_process(point: Point, sku: str, key: str | None) -> Answer | None:
    """Send the request in this process, and inject the fault."""
    transport = Transport(fails_at=point.number, fault=point.fault)
    predictable()
    with transport.installed():
        try:
            return post(sku, key)
        finally:
            transport.heal()
            close_all()


def explore(point: Point, send: Send = in_process) -> Answer | None:
    """Let the fault happen at `point`, and check every answer and the stock; return the first answer.

    Raises:
        Violation: naming the point and what is untrue.
    """
    sku = stock_up(point.strategy, cold=point.cold)
    key = KEY.format(sku) if point.keyed else None
    with override_settings(CHECKOUT_STRATEGY=point.strategy, RECONCILE_OLDER_THAN=0):
        first = send(point, sku, key)
        eventually(nobody_works, "PostgreSQL rolls back what was cut off")
        problem = first and _untrue(first, sku, may_be_unknown=point.may_be_unknown)
        problem = problem or _after(point, sku, key, first)
    if problem:
        raise Violation(f"{point}: answered {first}; {problem}")
    return first


def _untrue(answer: Answer, sku: str, *, may_be_unknown: bool) -> str:
    orders = ids(sku)
    if answer.kind == "placed":
        return "" if orders == [answer.order] else f"but the orders are {orders}"
    if answer.kind == "outcome-unknown":
        return "" if may_be_unknown else "but no COMMIT can have been sent"
    if answer.kind not in NOTHING_ORDERED:
        return "which says nothing of the order"
    if answer.kind == "sold-out":
        return "but there is a unit, and no other buyer"
    return f"but there is an order: {orders}" if orders else ""


def _after(point: Point, sku: str, key: str | None, first: Answer | None) -> str:
    """Repeat the request, or send another buyer's, before and after a reconciliation."""
    rest()
    if first is not None and first.kind in NOTHING_ORDERED and not may_rest(point):
        kind = post(sku, key).kind
        if kind != "placed":
            return f"its unit isn't for sale at once: {kind}"
    elif key:
        kind = post(sku, key).kind
        if kind not in {"placed", "busy", "unavailable"}:
            return f"the repetition is refused for good: {kind}"
    return _settled(point, sku, key)


def _settled(point: Point, sku: str, key: str | None) -> str:
    settle(point.strategy)
    rest()
    had = ids(sku)
    last = post(sku, key)
    if last.kind != "placed" and not (had and not key and last.kind == "sold-out"):
        return f"after the reconciliation the answer is {last} beside the orders {had}"
    if len(ids(sku)) != 1 or (key and [last.order] != ids(sku)):
        return f"in the end the answer is {last}, and the orders are {ids(sku)}"
    if post(sku).kind != "sold-out":
        return "somebody else isn't refused, though nothing is left"
    drift = get_strategy(point.strategy).drift(Product.objects.filter(sku=sku)).get(sku, 0)
    if drift or StockClaim.objects.exists() or not totals_of(sku).balanced:
        return f"the totals don't agree: drift {drift}, {totals_of(sku)}"
    return ""


def may_rest(point: Point) -> bool:
    """Whether units may wait for the reconciler: what would return them is down, refuses, or is dead."""
    if point.step.server == REDIS or point.fault in KILLS:
        return True
    return point.fault.endswith("then down") and point.strategy in ("async_reserve", "unit_rows")


def settle(strategy: str) -> None:
    """Reconcile as the scheduled task does: only what it knows of."""
    if tasks._settles(STRATEGIES[strategy]):
        tasks._reconciled(get_strategy(strategy))


def rest() -> None:
    """Let every gate ask Redis again."""
    for each in STRATEGIES.values():
        if issubclass(each, ReservingStrategy):
            each.gate._rests_until = 0.0


def ids(sku: str) -> list[str]:
    """Return the ids of the orders of a product."""
    found = Order.objects.filter(items__product__sku=sku).values_list("pk", flat=True)
    return sorted(map(str, found))


def nobody_works() -> bool:
    """Whether PostgreSQL has noticed every lost connection and rolled it back."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"
        )
        return bool(cursor.fetchone() == (0,))

"""Explores an operation: each fault at each exchange with a server, and whether its answer is true.

What an operation does is taken from a run in which nothing fails: the shop as it was before, and as it is
after. So an answer can be judged without the code under test, and so can what a repetition comes to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Sum
from django.test import Client

from inventory import Busy, DatabaseUnavailable, OutcomeUnknown
from inventory.hooks import installed
from inventory.models import Level, Reservation
from orders.after_sale import fulfillment, lifecycle
from orders.audit import audit
from orders.models import IdempotencyKey, Order, OrderItem
from orders.selling import checkout, reservations
from tests.factories import ProductFactory
from tests.lab.interleaving import eventually
from tests.orders.faults.transport import DATABASE, FAULTS, Step, Transport, close_all
from tests.orders.mortal import nobody_works

DONE, NOTHING, UNKNOWN = "done", "nothing", "unknown"

Ask = Callable[[], str]
Begin = Callable[[str], Ask]


class Violation(AssertionError):
    """An answer wasn't true, or something was done twice or not at all."""


# Operations -------------------------------------------------------------------------------------------------


def _http(method: str, address: str, body: object = None, key: str | None = None) -> str:
    """Send a request, and say what its answer means."""
    headers = {"Idempotency-Key": key} if key else {}
    text = "" if body is None else json.dumps(body)
    client = Client(raise_request_exception=False)
    answer = client.generic(method, address, text, content_type="application/json", headers=headers)
    if answer.status_code < 300:
        return DONE
    kind = answer.json()["type"].removeprefix("/problems/#") if "problem" in answer["Content-Type"] else "?"
    return {"outcome-unknown": UNKNOWN, "busy": NOTHING, "unavailable": NOTHING}.get(kind, f"{kind}!")


def _call(act: Callable[..., Any], *args: Any) -> str:
    """Call a service, and say what its error means."""
    try:
        act(*args)
    except (Busy, DatabaseUnavailable):
        return NOTHING
    except OutcomeUnknown:
        return UNKNOWN
    return DONE


def _order(sku: str, *steps: Callable[[UUID], object]) -> UUID:
    order = checkout.checkout([(sku, 2)], "conditional_update", customer="ann").pk
    for step in steps:
        step(order)
    return order


def _parcel(order: UUID) -> object:
    return fulfillment.ship(order, None, "first")


def sale(sku: str) -> Ask:
    """Buy over HTTP, with a key."""
    return lambda: _http("POST", "/checkout/", {"lines": [{"sku": sku, "quantity": 2}]}, f"k-{sku}")


def sale_of_a_reservation(sku: str) -> Ask:
    """Buy what is reserved."""
    made = reservations.reserve([(sku, 2)], timedelta(minutes=1), "ann")
    return lambda: _http("POST", "/checkout/", {"reservation": str(made.id)}, f"k-{sku}")


def reservation(sku: str) -> Ask:
    """Reserve over HTTP, with a key."""
    body = {"lines": [{"sku": sku, "quantity": 2}], "customer": "ann"}
    return lambda: _http("POST", "/reservations/", body, f"k-{sku}")


def extension(sku: str) -> Ask:
    """Extend a reservation."""
    made = reservations.reserve([(sku, 2)], timedelta(minutes=1))
    return lambda: _http("POST", f"/reservations/{made.id}/extend/", {"ttl": 7200})


def release(sku: str) -> Ask:
    """Release a reservation."""
    made = reservations.reserve([(sku, 2)], timedelta(minutes=1))
    return lambda: _http("DELETE", f"/reservations/{made.id}/")


def payment(sku: str) -> Ask:
    """Note a payment."""
    order = _order(sku)
    return lambda: _http("POST", f"/orders/{order}/pay/", {})


def cancellation(sku: str) -> Ask:
    """Cancel an order."""
    order = _order(sku, lifecycle.pay)
    return lambda: _http("POST", f"/orders/{order}/cancel/", {})


def shipment(sku: str) -> Ask:
    """Ship a part."""
    order = _order(sku, lifecycle.pay)
    return lambda: _call(fulfillment.ship, order, [(sku, 1)], "parcel")


def taking_back(sku: str) -> Ask:
    """Take a part back."""
    order = _order(sku, lifecycle.pay, _parcel)
    return lambda: _call(fulfillment.take_back, order, [(sku, 1)], "back")


def cancelled_units(sku: str) -> Ask:
    """Cancel a part."""
    order = _order(sku, lifecycle.pay)
    return lambda: _call(fulfillment.cancel_units, order, [(sku, 1)], "less")


AFTER_SALE: list[Begin] = [
    sale_of_a_reservation, reservation, extension, release, payment, cancellation, shipment, taking_back,
    cancelled_units,
]  # fmt: skip


# Exploring --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """One fault: of which operation, at which exchange, and whether a COMMIT may have been sent by then."""

    begin: Begin
    number: int
    step: Step
    fault: str
    may_be_unknown: bool

    def __str__(self) -> str:
        return f"{self.begin.__name__}: {self.fault} at {self.number} ({self.step})"


def seen(sku: str) -> dict[str, Any]:
    """Return what there is of a product, its orders and its reservations."""
    columns = ("available", "reserved", "committed", "unavailable")
    levels = Level.objects.filter(item__sku=sku).aggregate(**{name: Sum(name) for name in columns})
    items = OrderItem.objects.filter(product__sku=sku)
    lasting = Reservation.objects.filter(entry__movements__level__item__sku=sku).values_list(
        "state", "expires_at"
    )
    return levels | {
        "orders": sorted(Order.objects.filter(items__product__sku=sku).values_list("state", flat=True)),
        "items": sorted(items.values_list("quantity", "shipped", "returned", "cancelled")),
        "keys": IdempotencyKey.objects.filter(key=f"k-{sku}").count(),
        "reservations": sorted((state, _lasts_long(ends)) for state, ends in lasting),
    }


def _lasts_long(ends: Any) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s > now() + interval '1 hour'", [ends])
        return bool(cursor.fetchone()[0])


def course(begin: Begin) -> tuple[list[Step], int, dict[str, Any], dict[str, Any]]:
    """Let the operation go well; return its exchanges, the first that may be COMMIT, before and after."""
    sku = ProductFactory.create(on_hand=5).sku
    ask, before = begin(sku), seen(sku)
    transport, written = Transport(), [10**6]

    def note(name: str, /, **facts: object) -> None:
        if name in ("written", "recorded"):
            written.append(len(transport.steps))

    with transport.installed(), installed(note):
        answer = ask()
    assert answer == DONE, f"{begin.__name__} fails even if nothing else does: {answer}"
    return transport.steps, written[-1], before, seen(sku)


def points(begin: Begin, *, whole: bool) -> Iterator[tuple[Point, dict[str, Any], dict[str, Any]]]:
    """Yield every point of an operation, or those from the last statements on, with before and after."""
    ask_once(begin)  # servers have learned scripts and statements
    steps, written, before, after = course(begin)
    for number, step in enumerate(steps):
        unknown = step.server == DATABASE and number >= written
        if whole or number >= written - 1 or number < 1:
            for fault in FAULTS[step.server]:
                yield Point(begin, number, step, fault, unknown), before, after


def ask_once(begin: Begin) -> None:
    """Do the operation once."""
    begin(ProductFactory.create(on_hand=5).sku)()


def explore(point: Point, before: dict[str, Any], after: dict[str, Any]) -> str:
    """Let the fault happen, judge the answer, repeat until it is done, and return the first answer.

    Raises:
        Violation: naming the point and what is untrue.
    """
    sku = ProductFactory.create(on_hand=5).sku
    ask = point.begin(sku)
    transport = Transport(fails_at=point.number, fault=point.fault)
    with transport.installed():
        try:
            first = ask()
        finally:
            transport.heal()
            close_all()
    eventually(nobody_works, "PostgreSQL rolls back what was cut off")
    untrue = _untrue(point, first, seen(sku), before, after)
    again = untrue or [ask() for _ in range(2)][-1]
    if not untrue and again != DONE:
        untrue = f"the repetition is refused: {again}"
    if not untrue and seen(sku) != after:
        untrue = f"in the end there is {seen(sku)}, not {after}"
    if not untrue and audit():
        untrue = f"the audit finds {audit()}"
    if untrue:
        raise Violation(f"{point}: answered {first}; {untrue}")
    return first


def _untrue(
    point: Point, answer: str, now: dict[str, Any], before: dict[str, Any], after: dict[str, Any]
) -> str:
    if answer == UNKNOWN:
        return "" if point.may_be_unknown else "but no COMMIT can have been sent"
    expected = {DONE: after, NOTHING: before}.get(answer)
    if expected is None:
        return "which says nothing true"
    return "" if now == expected else f"but there is {now}, not {expected}"

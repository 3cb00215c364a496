"""Explores an operation: each fault at each exchange with a server, and whether its answer is true.

What an operation does is taken from a run in which nothing fails: the shop as it was before, and as it is
after. So an answer can be judged without the code under test, and so can what a repetition comes to.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from time import monotonic
from typing import Any, Final
from uuid import UUID

from django.contrib.messages import get_messages
from django.db import connection
from django.db.models import Sum
from django.test import Client

from inventory import Busy, DatabaseUnavailable, OutcomeUnknown
from inventory.hooks import installed
from inventory.models import Level, Reservation
from orders.after_sale import fulfillment, lifecycle, refunds
from orders.audit import audit
from orders.http import problems, webhook
from orders.models import IdempotencyKey, Order, OrderEvent, OrderItem, PaymentEvent, Refund
from orders.selling import checkout, reservations
from tests.factories import ProductFactory
from tests.lab.interleaving import eventually
from tests.orders.faults.transport import DATABASE, FAULTS, Step, Transport, close_all
from tests.orders.mortal import database_is_idle

DONE, NOTHING, UNKNOWN = "done", "nothing", "unknown"
SECRET: Final = "whsec_of_the_faults"
"""With it the provider of `notice` signs."""

Ask = Callable[[], str]
Begin = Callable[[str], Ask]


class Violation(AssertionError):
    """An answer wasn't true, or something was done twice or not at all."""


# Operations -------------------------------------------------------------------------------------------------


def _http(method: str, address: str, body: object = None, key: str | None = None, **headers: str) -> str:
    """Send a request, and say what its answer means."""
    headers |= {"Idempotency-Key": key} if key else {}
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


def sale_without_a_key(sku: str) -> Ask:
    """Buy over HTTP, with no key."""
    return lambda: _http("POST", "/checkout/", {"lines": [{"sku": sku, "quantity": 2}]})


def sale_by_the_form(sku: str) -> Ask:
    """Buy on the page, whose form has a key."""
    fields = {f"quantity-{sku}": "2", "key": hashlib.md5(sku.encode(), usedforsecurity=False).hexdigest()}
    said = {
        problems.BUSY.title: NOTHING,
        problems.UNAVAILABLE.title: NOTHING,
        problems.OUTCOME_UNKNOWN.title: UNKNOWN,
    }

    def send() -> str:
        answer = Client(raise_request_exception=False).post("/shop/order/", fields)
        (text,) = map(str, get_messages(answer.wsgi_request))
        return DONE if text.startswith("Ordered for") else said.get(text.partition(":")[0], text)

    return send


def sale_of_a_reservation(sku: str) -> Ask:
    """Buy what is reserved."""
    made = reservations.reserve([(sku, 2)], timedelta(minutes=1), "ann")
    return lambda: _http("POST", "/checkout/", {"reservation": str(made.id)}, f"k-{sku}")


def sale_of_a_reservation_without_a_key(sku: str) -> Ask:
    """Buy what is reserved, with no key."""
    made = reservations.reserve([(sku, 2)], timedelta(minutes=1), "ann")
    return lambda: _http("POST", "/checkout/", {"reservation": str(made.id)})


def reservation_without_a_key(sku: str) -> Ask:
    """Reserve over HTTP, with no key."""
    body = {"lines": [{"sku": sku, "quantity": 2}], "customer": "ann"}
    return lambda: _http("POST", "/reservations/", body)


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


def notice(sku: str) -> Ask:
    """Hear of a payment from its provider, which repeats what isn't answered."""
    paid = {"id": f"pi_{sku}", "amount_received": 500, "currency": "eur"}
    paid["metadata"] = {"order_id": str(_order(sku))}
    event = {"id": f"evt_{sku}", "type": "payment_intent.succeeded", "data": {"object": paid}}
    at = int(webhook._now())
    made = hmac.new(SECRET.encode(), f"{at}.{json.dumps(event)}".encode(), hashlib.sha256).hexdigest()
    signed = {webhook.HEADER: f"t={at},v1={made}"}
    return lambda: _http("POST", "/payments/webhook/", event, **signed)


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


def refund(sku: str) -> Ask:
    """Give a part of the money back."""
    order = _order(sku, lifecycle.pay)
    return lambda: _call(refunds.refund, order, Decimal("1.00"), "complaint")


WITHOUT_A_KEY: list[Begin] = [
    sale_without_a_key, reservation_without_a_key, sale_of_a_reservation_without_a_key,
]  # fmt: skip
"""Their client repeats only what has done nothing, and learns it where that isn't known."""

OPERATIONS: list[Begin] = [
    *WITHOUT_A_KEY, sale_by_the_form, sale_of_a_reservation, reservation, extension, release, payment, notice,
    cancellation, shipment, taking_back, cancelled_units, refund,
]  # fmt: skip
"""All that write, beside the sale with a key."""


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
    its = {"order__items__product__sku": sku}
    lasting = Reservation.objects.filter(entry__movements__level__item__sku=sku).values_list(
        "state", "expires_at"
    )
    return levels | {
        "orders": sorted(Order.objects.filter(items__product__sku=sku).values_list("state", flat=True)),
        "items": sorted(items.values_list("quantity", "shipped", "returned", "cancelled")),
        "events": sorted(OrderEvent.objects.filter(**its).values_list("kind", flat=True)),
        "payments": sorted(PaymentEvent.objects.filter(**its).values_list("outcome", flat=True)),
        "refunds": sorted(Refund.objects.filter(**its).values_list("amount", flat=True)),
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
    eventually(database_is_idle, "PostgreSQL rolls back what was cut off")
    untrue = _untrue(point, first, seen(sku), before, after)
    if not untrue and first == UNKNOWN and point.begin in WITHOUT_A_KEY:
        untrue = "" if (now := seen(sku)) in (before, after) else f"but there is {now}"
    elif not untrue:
        untrue = _untrue_again(point.begin, ask, first) or (
            "" if (now := seen(sku)) == after else f"in the end there is {now}, not {after}"
        )
    if not untrue and (found := audit()):
        untrue = f"the audit finds {found}"
    if untrue:
        raise Violation(f"{point}: answered {first}; {untrue}")
    return first


def seconds_until_sold_again(point: Point) -> float:
    """Let the fault happen to a buyer; return how long the next one tries once the servers are back."""
    sku = ProductFactory.create(on_hand=5).sku
    transport = Transport(fails_at=point.number, fault=point.fault)
    with transport.installed():
        point.begin(sku)()
        transport.heal()
        close_all()
    begun = monotonic()
    eventually(lambda: point.begin(sku)() == DONE, "another buyer is served")
    return monotonic() - begun


def _untrue_again(begin: Begin, ask: Ask, first: str) -> str:
    """Repeat what may be repeated until it is done; return what is wrong with that."""
    repetitions = 2 if begin not in WITHOUT_A_KEY else 0 if first == DONE else 1
    answers = [ask() for _ in range(repetitions)]
    return "" if answers[-1:] in ([], [DONE]) else f"the repetition is refused: {answers[-1]}"


def _untrue(
    point: Point, answer: str, now: dict[str, Any], before: dict[str, Any], after: dict[str, Any]
) -> str:
    if answer == UNKNOWN:
        return "" if point.may_be_unknown else "but no COMMIT can have been sent"
    expected = {DONE: after, NOTHING: before}.get(answer)
    if expected is None:
        return "which says nothing true"
    return "" if now == expected else f"but there is {now}, not {expected}"

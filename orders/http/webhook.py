"""The payment provider's webhook, signed as Stripe signs: `t=<unix time>,v1=<HMAC-SHA256 of "t.body">`.

Several secrets may be valid at once, so one can be replaced without losing an event. The signature covers
the time; an event older than `TOLERANCE` is refused, so a recorded request cannot be sent again later. Within
that time the event's id, which is unique, keeps it from doing anything twice.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from django.conf import settings
from django.db import connection
from django.http import HttpResponse
from pydantic import BaseModel, ConfigDict, Field

from orders.after_sale import payments
from orders.http import bodies
from orders.http.api import Request, header, operation, read_by
from orders.http.problems import NOT_FOUND, SIGNATURE, Problem, invalid
from orders.http.reading import checked, load
from orders.http.responses import json_answer
from orders.models import PaymentEvent

HEADER: Final = "Stripe-Signature"
TOLERANCE: Final = 300
"""Seconds that the signed time may differ from the database's clock."""

_PART = re.compile(r"(?P<name>t|v1)=(?P<value>[0-9a-f]{1,64})\Z")


class FromProvider(BaseModel):
    """What a provider sends has members that the shop does not read; those that it reads have their type."""

    model_config = ConfigDict(strict=True, frozen=True)


# The database keeps no NUL in a text.
Name = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00]*$")]
Kind = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00]*$")]


class AnyNotice(FromProvider):
    """What every event has, whatever it is about."""

    id: Name
    type: Kind


class PaymentObject(FromProvider):
    """What was paid: a payment intent or a checkout session; other members are ignored."""

    id: Name
    metadata: dict[str, Any] = {}
    client_reference_id: str | None = None
    payment_intent: Name | None = None
    payment_status: str | None = None
    amount_received: int | None = None
    amount_total: int | None = None
    currency: Annotated[str, Field(pattern="^[A-Za-z]{3}$")] | None = None


class PaymentEnvelope(FromProvider):
    """The envelope of the object."""

    object: PaymentObject


class PaymentNotice(AnyNotice):
    """An event as the provider sends it; other members are ignored."""

    data: PaymentEnvelope


_AMOUNTS: Final[dict[str, Literal["amount_received", "amount_total"]]] = {
    "payment_intent.succeeded": "amount_received",
    "checkout.session.completed": "amount_total",
    "checkout.session.async_payment_succeeded": "amount_total",
}
"""Types of events that mean money, and the member that says how much."""


def _read(request: Request) -> AnyNotice:
    """Return the event, once it is known who sent it."""
    if not settings.PAYMENT_WEBHOOK_SECRETS:
        raise Problem(NOT_FOUND, "This shop takes no payment events; set PAYMENT_WEBHOOK_SECRETS.")
    verify(request.headers.get(HEADER, ""), request.body, settings.PAYMENT_WEBHOOK_SECRETS)
    data = load(request.body)
    named = checked(AnyNotice, data)
    # Other events have objects of their own: a balance, for one, has no id.
    return checked(PaymentNotice, data) if named.type in _AMOUNTS else named


@operation(
    "POST",
    "/payments/webhook/",
    "signature-refused not-found busy",
    answer=bodies.Payment,
    caller=False,
    headers=[header(HEADER)],
)
@read_by(_read)
def payment(request: Request, notice: PaymentNotice) -> HttpResponse:
    """Receive an event of the payment provider, signed as Stripe signs; once, however often it comes."""
    event, repeated = _received(notice)
    return json_answer({"event": event.event_id, "outcome": event.outcome, "repeated": repeated})


def verify(header: str, body: bytes, secrets: Sequence[str]) -> None:
    """Refuse a request that none of `secrets` has signed within `TOLERANCE`.

    Args:
        header: of the request; empty if it had none.
        body: as it was sent, byte by byte.
        secrets: any of them may have signed.

    Raises:
        Problem: 400, and says whether header, signature or time is wrong.
    """
    sent_at, given = _parsed(header)
    signed = f"{sent_at}.".encode() + body
    expected = [hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest() for secret in secrets]
    if not any(hmac.compare_digest(ours, theirs) for ours in expected for theirs in given):
        raise Problem(
            SIGNATURE,
            f"None of the {len(secrets)} secrets of this shop made the signature of this body; compare "
            "PAYMENT_WEBHOOK_SECRETS with the provider's, and send the body unchanged.",
        )
    age = _now() - sent_at
    if abs(age) > TOLERANCE:
        raise Problem(
            SIGNATURE,
            f"The signature is {abs(age):.0f} s {'old' if age > 0 else 'in the future'}, at most "
            f"{TOLERANCE} s are accepted; sign each attempt, and compare the clocks.",
        )


def _parsed(header: str) -> tuple[int, list[str]]:
    """Return the time and the signatures of scheme v1; other schemes are ignored."""
    parts = [match for part in header.split(",") if (match := _PART.match(part.strip()))]
    times = [match["value"] for match in parts if match["name"] == "t"]
    given = [match["value"] for match in parts if match["name"] == "v1"]
    if len(times) != 1 or not times[0].isdecimal() or len(times[0]) > 12 or not given:
        raise Problem(
            SIGNATURE,
            f"The header {HEADER} {'is missing' if not header else 'cannot be read'}; send "
            "t=<seconds since 1970>,v1=<hexadecimal HMAC-SHA256>.",
        )
    return int(times[0]), given


def _now() -> float:
    """Return the database's time, which decides about every other deadline, too."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM statement_timestamp())")
        return float(cursor.fetchone()[0])


def _received(notice: AnyNotice) -> tuple[PaymentEvent, bool]:
    paid = notice.data.object if isinstance(notice, PaymentNotice) else None
    if paid is None or (notice.type == "checkout.session.completed" and paid.payment_status != "paid"):
        event, created = payments.ignore(notice.id, notice.type)
        return event, not created
    return payments.receive(
        payments.Payment(
            event_id=notice.id,
            kind=notice.type,
            order_id=_order_id(paid),
            reference=paid.payment_intent or paid.id,
            amount=_given(paid, _AMOUNTS[notice.type]),
            currency=_given(paid, "currency"),
        )
    )


def _order_id(paid: PaymentObject) -> UUID:
    given = paid.metadata.get("order_id", paid.client_reference_id)
    try:
        return UUID(given)
    except (ValueError, TypeError, AttributeError):
        reason = "is not the id of an order; set it, or client_reference_id, when you create the payment"
        raise invalid(("/data/object/metadata/order_id", reason)) from None


def _given(paid: PaymentObject, member: str) -> Any:
    value = getattr(paid, member)
    if value is None:
        raise invalid((f"/data/object/{member}", "is missing"))
    return value

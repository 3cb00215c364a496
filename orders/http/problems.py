"""Every problem (RFC 9457) that the shop answers, with its texts and an example.

*Sold out* is final (409). *Busy* and an outage are not (503, with Retry-After): a shop that mixes them up
turns buyers away from a full shelf. Where it can't be known whether the order was placed, the answer says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from django.utils.translation import gettext_noop


@dataclass(frozen=True)
class ProblemType:
    """One kind of problem. Its page is `/problems/#<slug>`.

    Attributes:
        title, meaning: in English; the page of problems translates them.
        detail: of an example, and of every problem that has none of its own.
        members: further members of the example.
    """

    slug: str
    status: HTTPStatus
    title: str
    meaning: str
    detail: str
    members: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def address(self) -> str:
        """The `type` of the problem."""
        return f"/problems/#{self.slug}"


class Problem(Exception):
    """A problem that happened: its type, what is particular to this time, extra members and headers."""

    def __init__(
        self,
        kind: ProblemType,
        detail: str = "",
        *,
        headers: dict[str, str] | None = None,
        retry_after: float | None = None,
        **members: Any,
    ) -> None:
        self.kind = kind
        self.detail = detail or kind.detail
        self.headers = dict(headers or {})
        if retry_after is not None:
            # In whole seconds; rounded up, or the second try would come while the lock is still held.
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after)))
        self.members = members
        super().__init__(self.detail)

    def document(self) -> dict[str, Any]:
        """Return the members of the problem's body."""
        return {
            "type": self.kind.address,
            "title": self.kind.title,
            "status": self.kind.status.value,
            "detail": self.detail,
            **self.members,
        }


def invalid(*faults: tuple[str, str]) -> Problem:
    """Return the problem of a request in which each of `faults`, a JSON pointer and a reason, is wrong."""
    pointer, reason = faults[0]
    detail = f"{pointer or 'The body'} {reason}."
    if len(faults) > 1:
        detail += f" {len(faults) - 1} more in errors."
    return Problem(INVALID, detail, errors=[{"pointer": where, "detail": why} for where, why in faults])


PROBLEM_TYPES: list[ProblemType] = []


def _kind(status: int, slug: str, title: str, meaning: str, detail: str, **members: Any) -> ProblemType:
    kind = ProblemType(slug, HTTPStatus(status), title, meaning, detail, members)
    PROBLEM_TYPES.append(kind)
    return kind


INVALID = _kind(
    400,
    "invalid-request",
    gettext_noop("The request is not valid"),
    gettext_noop(
        "Each entry of errors has a JSON pointer to the field and the reason. Fix the request; sending it "
        "again as it is won't help."
    ),
    "/lines/0/quantity 51.5: must be a whole number between 1 and 10000.",
    errors=[{"pointer": "/lines/0/quantity", "detail": "51.5: must be a whole number between 1 and 10000"}],
)
KEY_MISSING = _kind(
    400,
    "key-missing",
    gettext_noop("An Idempotency-Key is required"),
    gettext_noop("Nothing was done. Send the header with a value of your own, such as a UUID."),
    "Send the header Idempotency-Key with a value of your own, such as a UUID.",
)
SIGNATURE = _kind(
    400,
    "signature-refused",
    gettext_noop("The signature is not valid"),
    gettext_noop(
        "Nothing was done. The detail says whether the header, the signature or its time is wrong. Sign the "
        "body as it is sent, with a secret that the shop knows, anew for each attempt."
    ),
    "The signature is 412 s old, at most 300 s are accepted; sign each attempt anew, and compare the clocks.",
)
UNAUTHORIZED = _kind(
    401,
    "unauthorized",
    gettext_noop("Authentication is required"),
    gettext_noop("Nothing was done. Send the credentials that the header WWW-Authenticate asks for."),
    "There is no API key; send the header Authorization: Bearer KEY.",
)
FORBIDDEN = _kind(
    403,
    "forbidden",
    gettext_noop("Not allowed for this caller"),
    gettext_noop("Nothing was done. The detail says which right is missing, and who has it."),
    "To note a payment the caller needs the right 'pay'; a provider sends its webhook.",
)
NOT_FOUND = _kind(
    404,
    "not-found",
    gettext_noop("Not found"),
    gettext_noop("There is nothing at this address."),
    "There is no order of this id.",
)
METHOD = _kind(
    405,
    "method-not-allowed",
    gettext_noop("Method not allowed"),
    gettext_noop("The header Allow names the methods that this address answers."),
    "PUT is not allowed here; use POST.",
)
SOLD_OUT = _kind(
    409,
    "sold-out",
    gettext_noop("Not enough stock"),
    gettext_noop(
        "A final answer: nothing was ordered. Each entry of shortages has the SKU, the units requested and "
        "those available."
    ),
    "Not enough of mug; nothing was ordered.",
    shortages=[{"sku": "mug", "requested": 3, "available": 1}],
)
LIMIT = _kind(
    409,
    "customer-limit",
    gettext_noop("More than one customer may have"),
    gettext_noop(
        "A final answer: nothing was ordered. The members sku, limit, bought and requested say why. Where "
        "customer is missing, send who buys."
    ),
    "One customer may have 2 of ticket; nothing was ordered.",
    sku="ticket",
    limit=2,
    bought=1,
    requested=2,
)
NOT_FOR_SALE = _kind(
    409,
    "not-for-sale",
    gettext_noop("Not for sale"),
    gettext_noop(
        "The member skus names products that can't be ordered at present. Take them out of the order."
    ),
    "lamp can't be ordered; nothing was ordered.",
    skus=["lamp"],
)
MIXED_CURRENCIES = _kind(
    409,
    "mixed-currencies",
    gettext_noop("Prices in several currencies"),
    gettext_noop(
        "An order has one total, in one currency. The member currencies has each product's: order those "
        "of each currency apart."
    ),
    "Prices are in EUR, USD; nothing was ordered.",
    currencies={"mug": "EUR", "poster": "USD"},
)
RESERVATION_GONE = _kind(
    409,
    "reservation-gone",
    gettext_noop("The reservation has ended"),
    gettext_noop("It was used, released, or its time is over; the member state says which. Reserve again."),
    "The reservation is expired.",
    state="expired",
)
TOO_LATE = _kind(
    409,
    "payment-too-late",
    gettext_noop("The payment came too late"),
    gettext_noop(
        "The order was cancelled or had expired, and its units were given back. Nothing was sold: give the "
        "money back, and order again."
    ),
    "The order is expired; nothing was sold.",
    state="expired",
)
ORDER_STATE = _kind(
    409,
    "order-state",
    gettext_noop("The order's state doesn't allow it"),
    gettext_noop("The member state says what the order is by now."),
    "The order is cancelled.",
    state="cancelled",
)
KEY_IN_PROGRESS = _kind(
    409,
    "key-in-progress",
    gettext_noop("The same request is still at work"),
    gettext_noop("Ask again with the same Idempotency-Key after the seconds in Retry-After."),
    "The first request is still at work.",
)
TOO_LARGE = _kind(
    413,
    "too-large",
    gettext_noop("The request is too large"),
    gettext_noop("Send fewer lines in one order."),
    "The body is larger than 65536 bytes.",
)
MEDIA_TYPE = _kind(
    415,
    "media-type",
    gettext_noop("Not JSON"),
    gettext_noop("A request has the header Content-Type: application/json, in UTF-8 and not compressed."),
    "Content-Type is text/plain; send application/json in UTF-8.",
)
UNKNOWN_PRODUCT = _kind(
    422,
    "unknown-product",
    gettext_noop("No such product"),
    gettext_noop(
        "Nothing was ordered. Each entry of errors has a JSON pointer to a SKU that no product has; "
        "GET /products/ lists them."
    ),
    '/lines/0/sku "mugg": no product has this SKU.',
    errors=[{"pointer": "/lines/0/sku", "detail": '"mugg": no product has this SKU'}],
)
KEY_REUSED = _kind(
    422,
    "key-reused",
    gettext_noop("The Idempotency-Key belongs to another request"),
    gettext_noop("Nothing was done. A key stands for one request; choose a new one for each."),
    "This key was used for another request; choose a new one.",
)
TOO_MANY = _kind(
    429,
    "too-many-requests",
    gettext_noop("Too many requests"),
    gettext_noop("Nothing was done. Try again after the seconds in Retry-After."),
    "More than 60 requests in a minute; nothing was done.",
)
BUSY = _kind(
    503,
    "busy",
    gettext_noop("Too busy right now"),
    gettext_noop(
        "Another request has the same product or order locked. Nothing was changed, and it may well be in "
        "stock: try again after the seconds in Retry-After."
    ),
    "The stock is busy; nothing was changed.",
)
UNAVAILABLE = _kind(
    503,
    "unavailable",
    gettext_noop("A server behind the shop doesn't answer"),
    gettext_noop("Nothing was changed. Try again after the seconds in Retry-After."),
    "The database can't be reached.",
)
OUTCOME_UNKNOWN = _kind(
    503,
    "outcome-unknown",
    gettext_noop("It isn't known whether the order was placed"),
    gettext_noop(
        "The connection or the lock was lost in the middle. Repeat the request with the same "
        "Idempotency-Key: the answer is the order if it was placed, and otherwise it is placed now, once. "
        "Without a key a second request may be a second order."
    ),
    "The lock was lost while the order was being placed.",
)

"""Every problem (RFC 9457) that the shop answers, with its texts and an example.

*Sold out* is final (409). *Busy* and an outage are not (503, with Retry-After): a shop that mixes them up
turns buyers away from a full shelf. Where it can't be known whether the order was placed, the answer says so.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from typing import Any, Final


@dataclass(frozen=True)
class ProblemType:
    """One kind of problem; its page is its `address`. Title and meaning are translated there.

    `detail` and `members` are an example's; a problem without a detail of its own has this one.
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
        self.kind, self.detail, self.members = kind, detail or kind.detail, members
        self.headers = dict(headers or {})
        if retry_after is not None:
            # In whole seconds; rounded up, or the second try would come while the lock is still held.
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after)))
        super().__init__(self.detail)

    def document(self) -> dict[str, Any]:
        """Return the members of the problem's body."""
        kind = self.kind
        said = {"type": kind.address, "title": kind.title, "status": int(kind.status), "detail": self.detail}
        return said | self.members

    @cached_property
    def text(self) -> str:
        """The document as JSON."""
        return json.dumps(self.document())


def invalid(*faults: tuple[str, str], kind: ProblemType | None = None) -> Problem:
    """Return the problem of a request in which each of `faults`, a JSON pointer and a reason, is wrong."""
    pointer, reason = faults[0]
    more = f" {len(faults) - 1} more in errors." if len(faults) > 1 else ""
    errors = [{"pointer": where, "detail": why} for where, why in faults]
    return Problem(kind or INVALID, f"{pointer or 'The body'} {reason}.{more}", errors=errors)


def shown(value: Any) -> str:
    """Show a value as JSON, ASCII only and cut short, and containers by their kind alone.

    Example:
        >>> shown("mug"), shown([1, 2])
        ('"mug"', 'an array')
    """
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "an array"
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


PROBLEM_TYPES: Final[list[ProblemType]] = []


def _kind(said: str, meaning: str, detail: str, **members: Any) -> ProblemType:
    """Return the type of `status slug: title`, which is listed from now on."""
    number, slug, title = re.split("[ :]+", said, maxsplit=2)
    PROBLEM_TYPES.append(ProblemType(slug, HTTPStatus(int(number)), title, meaning, detail, members))
    return PROBLEM_TYPES[-1]


INVALID = _kind(
    "400 invalid-request: The request is not valid",
    "Each entry of errors has a JSON pointer to the field and the reason. Fix the request; sending it "
    "again as it is won't help.",
    "/lines/0/quantity 51.5: must be a whole number between 1 and 10000.",
    errors=[{"pointer": "/lines/0/quantity", "detail": "51.5: must be a whole number between 1 and 10000"}],
)
KEY_MISSING = _kind(
    "400 key-missing: An Idempotency-Key is required",
    "Nothing was done. Send the header with a value of your own, such as a UUID.",
    "Send the header Idempotency-Key with a value of your own, such as a UUID.",
)
SIGNATURE = _kind(
    "400 signature-refused: The signature is not valid",
    "Nothing was done. The detail says whether the header, the signature or its time is wrong. Sign the "
    "body as it is sent, with a secret that the shop knows, for each attempt.",
    "The signature is 412 s old, at most 300 s are accepted; sign each attempt with its own time, and "
    "compare the clocks.",
)
UNAUTHORIZED = _kind(
    "401 unauthorized: Authentication is required",
    "Nothing was done. Send the credentials that the header WWW-Authenticate asks for.",
    "There is no API key; send the header Authorization: Bearer KEY.",
)
FORBIDDEN = _kind(
    "403 forbidden: Not allowed for this caller",
    "Nothing was done. The detail says which right is missing, and who has it.",
    "To note a payment the caller needs the right 'pay'; a provider sends its webhook.",
)
NOT_FOUND = _kind(
    "404 not-found: Not found",
    "There is nothing at this address.",
    "There is no order of this id.",
)
METHOD = _kind(
    "405 method-not-allowed: Method not allowed",
    "The header Allow names the methods that this address answers.",
    "PUT is not allowed here; use POST.",
)
SOLD_OUT = _kind(
    "409 sold-out: Not enough stock",
    "A final answer: nothing was ordered. Each entry of shortages has the SKU, the units requested and "
    "those available.",
    "Not enough of mug; nothing was ordered.",
    shortages=[{"sku": "mug", "requested": 3, "available": 1}],
)
LIMIT = _kind(
    "409 customer-limit: More than one customer may have",
    "A final answer: nothing was ordered. The members sku, limit, bought and requested say why. Where "
    "customer is missing, send who buys.",
    "One customer may have 2 of ticket; nothing was ordered.",
    sku="ticket",
    limit=2,
    bought=1,
    requested=2,
)
NOT_FOR_SALE = _kind(
    "409 not-for-sale: Not for sale",
    "The member skus names products that can't be ordered at present. Take them out of the order.",
    "lamp can't be ordered; nothing was ordered.",
    skus=["lamp"],
)
MIXED_CURRENCIES = _kind(
    "409 mixed-currencies: Prices in several currencies",
    "An order has one total, in one currency. The member currencies has each product's: order those "
    "of each currency apart.",
    "Prices are in EUR, USD; nothing was ordered.",
    currencies={"mug": "EUR", "poster": "USD"},
)
PRICE_CHANGED = _kind(
    "409 price-changed: The price has changed",
    "Nothing was ordered. The members expected and total are what was agreed, and what the order costs "
    "now. To buy at that price, send it as expected_total.",
    "The order costs 99.00 EUR by now, and 10.00 EUR were expected; nothing was ordered.",
    expected="10.00",
    total="99.00",
    currency="EUR",
)
RESERVATION_GONE = _kind(
    "409 reservation-gone: The reservation has ended",
    "It was sold, released, or its time is over; the member state says which. Reserve again.",
    "The reservation is expired.",
    state="expired",
)
TOO_LATE = _kind(
    "409 payment-too-late: The payment came too late",
    "The order was cancelled or had expired, and its units were given back. Nothing was sold: give the "
    "money back, and order again.",
    "The order is expired; nothing was sold.",
    state="expired",
)
ORDER_STATE = _kind(
    "409 order-state: The order's state doesn't allow it",
    "The member state says what the order is by now.",
    "The order is cancelled.",
    state="cancelled",
)
KEY_IN_PROGRESS = _kind(
    "409 key-in-progress: The same request is still at work",
    "Ask again with the same Idempotency-Key after the seconds in Retry-After.",
    "The first request is still at work.",
)
TOO_LARGE = _kind(
    "413 too-large: The request is too large",
    "Send fewer lines in one order.",
    "The body is larger than 65536 bytes.",
)
MEDIA_TYPE = _kind(
    "415 media-type: Not JSON",
    "A request has the header Content-Type: application/json, in UTF-8 and not compressed.",
    "Content-Type is text/plain; send application/json in UTF-8.",
)
UNKNOWN_PRODUCT = _kind(
    "422 unknown-product: No such product",
    "Nothing was ordered. Each entry of errors has a JSON pointer to a SKU that no product has; "
    "GET /products/ lists them.",
    '/lines/0/sku "mugg": no product has this SKU.',
    errors=[{"pointer": "/lines/0/sku", "detail": '"mugg": no product has this SKU'}],
)
KEY_REUSED = _kind(
    "422 key-reused: The Idempotency-Key belongs to another request",
    "Nothing was done. A key stands for one request; choose a new one for each.",
    "This key was used for another request; choose a new one.",
)
TOO_MANY = _kind(
    "429 too-many-requests: Too many requests",
    "Nothing was done. Try again after the seconds in Retry-After.",
    "More than 60 requests in a minute; nothing was done.",
)
BUSY = _kind(
    "503 busy: Too busy right now",
    "Another request has the same product or order locked. Nothing was changed, and it may well be in "
    "stock: try again after the seconds in Retry-After.",
    "The stock is busy; nothing was changed.",
)
UNAVAILABLE = _kind(
    "503 unavailable: A server behind the shop doesn't answer",
    "Nothing was changed. Try again after the seconds in Retry-After.",
    "The database can't be reached.",
)
OUTCOME_UNKNOWN = _kind(
    "503 outcome-unknown: It isn't known whether the order was placed",
    "The connection or the lock was lost in the middle. Repeat the request with the same "
    "Idempotency-Key: the answer is the order if it was placed, and otherwise it is placed now, once. "
    "Without a key a second request may be a second order.",
    "The lock was lost while the order was being placed.",
)

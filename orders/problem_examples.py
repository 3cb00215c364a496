"""One answer for each type of problem, as the page of problems shows it."""

from __future__ import annotations

import json
from typing import Any, Final

from orders.problems import Problem, ProblemType, document

_EXAMPLES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "invalid-request": (
        "/lines/0/quantity 51.5: must be a whole number from 1 to 10000.",
        {
            "errors": [
                {"pointer": "/lines/0/quantity", "detail": "51.5: must be a whole number from 1 to 10000"}
            ]
        },
    ),
    "key-missing": ("The header Idempotency-Key is missing.", {}),
    "signature-refused": (
        "The signature is 412 s old, at most 300 s are accepted; sign each attempt anew, and compare the "
        "clocks.",
        {},
    ),
    "unauthorized": ("There is no API key; send the header Authorization: Bearer KEY.", {}),
    "forbidden": ("To note a payment the caller needs the right 'pay'.", {}),
    "not-found": ("There is no order of this id.", {}),
    "method-not-allowed": ("PUT is not allowed here; use POST.", {}),
    "sold-out": (
        "Not enough of mug; nothing was ordered.",
        {"shortages": [{"sku": "mug", "requested": 3, "available": 1}]},
    ),
    "customer-limit": (
        "One customer may have 2 of ticket; nothing was ordered.",
        {"sku": "ticket", "limit": 2, "bought": 1, "requested": 2},
    ),
    "not-for-sale": ("lamp can't be ordered; nothing was ordered.", {"skus": ["lamp"]}),
    "mixed-currencies": (
        "Prices are in EUR, USD; nothing was ordered.",
        {"currencies": {"mug": "EUR", "poster": "USD"}},
    ),
    "reservation-gone": ("The reservation is expired.", {"state": "expired"}),
    "payment-too-late": ("The order is expired; nothing was sold.", {"state": "expired"}),
    "order-state": ("The order is cancelled.", {"state": "cancelled"}),
    "key-in-progress": ("A request with this Idempotency-Key is still in progress.", {}),
    "too-large": ("The body is larger than 65536 bytes.", {}),
    "media-type": ("Content-Type is text/plain; send application/json in UTF-8.", {}),
    "key-reused": ("This Idempotency-Key was sent with another body.", {}),
    "too-many-requests": ("60 requests in this minute; try again after the seconds in Retry-After.", {}),
    "busy": ("The stock was busy for too long; nothing was changed.", {}),
    "unavailable": ("The database can't be reached.", {}),
    "outcome-unknown": ("The lock was lost while the order was being placed.", {}),
}


def example(kind: ProblemType) -> str:
    """Return the body of a problem of this type, indented for people."""
    detail, members = _EXAMPLES[kind.slug]
    return json.dumps(document(Problem(kind, detail, **members)), indent=2)

"""The interface described for programs, as OpenAPI 3.1.

Bodies come from `orders.schemas`, which validates them; problems and patterns from where they are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter

from orders import problems, schemas
from orders.idempotency import HEADER, KEY_PATTERN, KEY_RULE
from orders.payment_webhook import HEADER as SIGNATURE_HEADER
from orders.payment_webhook import PaymentNotice
from orders.problems import PROBLEM_TYPES, ProblemType
from orders.schemas import Sku

Schema = dict[str, Any]

_UUID: Schema = {"type": "string", "format": "uuid"}
_RUSH = (problems.TOO_MANY, problems.BUSY)
_POST = (problems.INVALID, problems.TOO_LARGE, problems.MEDIA_TYPE, problems.OUTCOME_UNKNOWN)
_CART = (problems.SOLD_OUT, problems.LIMIT, problems.NOT_FOR_SALE, problems.MIXED_CURRENCIES)
_KEYS = (problems.KEY_MISSING, problems.KEY_IN_PROGRESS, problems.KEY_REUSED)
_CALLER = (problems.UNAUTHORIZED,)

_BODIES: Final[dict[str, Any]] = {
    "Cart": schemas.Cart,
    "ReservedCart": schemas.ReservedCart,
    "ReservationBody": schemas.ReservationBody,
    "ExtensionBody": schemas.ExtensionBody,
    "EmptyBody": schemas.EmptyBody,
    "PaymentNotice": PaymentNotice,
    "Order": schemas.OrderData,
    "Orders": schemas.OrdersData,
    "Reservation": schemas.ReservationData,
    "Products": schemas.ProductsData,
    "Payment": schemas.PaymentResult,
}
"""By the name in the document: what validates a request, or types an answer."""


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _schemas() -> dict[str, Schema]:
    """Return the schemas of all bodies under their names, and those that they refer to."""
    made, shared = TypeAdapter.json_schemas(
        [(name, "validation", TypeAdapter(body)) for name, body in _BODIES.items()],
        ref_template="#/components/schemas/{model}",
    )
    named = {name: made[name, "validation"] for name in _BODIES}
    return {**named, **shared["$defs"], "Problem": _PROBLEM}


def _type(kind: ProblemType) -> str:
    return f"/problems/#{kind.slug}"


_PROBLEM: Final[Schema] = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": [_type(kind) for kind in PROBLEM_TYPES]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
    "required": ["type", "title", "status", "detail"],
}


def _answers(status: int, schema: str | None, kinds: Iterable[ProblemType], **headers: str) -> Schema:
    """Return the answers of an operation: the good one, and for each status those of `kinds` that have it."""
    good: Schema = {"description": "done"}
    if schema:
        good["content"] = {"application/json": {"schema": _ref(schema)}}
    if headers:
        good["headers"] = {name: {"schema": {"type": kind}} for name, kind in headers.items()}
    answers = {str(status): good}
    by_status: dict[int, list[ProblemType]] = {}
    for kind in (*kinds, problems.UNAVAILABLE):
        by_status.setdefault(kind.status.value, []).append(kind)
    return answers | {str(status): _problem(some) for status, some in by_status.items()}


def _problem(kinds: Sequence[ProblemType]) -> Schema:
    types = {"type": {"enum": [_type(kind) for kind in kinds]}}
    schema = {"allOf": [_ref("Problem"), {"properties": types}]}
    return {
        "description": " ".join(f"{kind.slug}: {kind.title}." for kind in kinds),
        "content": {"application/problem+json": {"schema": schema}},
    }


def _operation(name: str, summary: str, responses: Schema, *parameters: Schema, takes: str = "") -> Schema:
    operation: Schema = {"operationId": name, "summary": summary, "responses": responses}
    if parameters:
        operation["parameters"] = list(parameters)
    if takes:
        operation["requestBody"] = _takes(*takes.split("|"))
    return operation


def _takes(*names: str) -> Schema:
    schema = _ref(names[0]) if len(names) == 1 else {"oneOf": [_ref(name) for name in names]}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _parameter(name: str, where: str, schema: Schema) -> Schema:
    return {"name": name, "in": where, "required": where == "path", "schema": schema}


def _key() -> Schema:
    schema = {"type": "string", "pattern": KEY_PATTERN, "description": KEY_RULE}
    return _parameter(HEADER, "header", schema)


def _checkout() -> Schema:
    refusals = (problems.NOT_FOUND, *_CART, problems.RESERVATION_GONE, *_RUSH)
    return _operation(
        "checkout",
        "Place an order. A repeated Idempotency-Key gets the first answer again.",
        _answers(201, "Order", (*_POST, *_CALLER, *refusals, *_KEYS), Location="string"),
        _key(),
        takes="Cart|ReservedCart",
    )


def _reserve() -> Schema:
    kinds = (*_POST, *_CALLER, *_CART, *_RUSH, *_KEYS)
    return _operation(
        "reserve",
        "Reserve units for a while; checkout takes the reservation's id. A repeated key reserves once.",
        _answers(201, "Reservation", kinds, Location="string"),
        _key(),
        takes="ReservationBody",
    )


def _reservation() -> Schema:
    path = _parameter("reservation", "path", _UUID)
    gone = (*_CALLER, problems.NOT_FOUND, problems.RESERVATION_GONE, problems.BUSY)
    return {
        "get": _operation(
            "reservation",
            "Show a reservation and its state.",
            _answers(200, "Reservation", (*_CALLER, problems.NOT_FOUND)),
            path,
        ),
        "delete": _operation(
            "release",
            "Give a reservation's units back before its time.",
            _answers(204, None, gone),
            path,
        ),
    }


def _extend() -> Schema:
    kinds = (*_POST, *_CALLER, problems.NOT_FOUND, problems.RESERVATION_GONE, problems.BUSY)
    return _operation(
        "extend",
        "Let a reservation last for `ttl` seconds from now at least, for a week in all at most.",
        _answers(200, "Reservation", kinds),
        _parameter("reservation", "path", _UUID),
        takes="ExtensionBody",
    )


def _change(verb: str, summary: str, *refusals: ProblemType) -> Schema:
    return _operation(
        verb,
        summary,
        _answers(200, "Order", (*_POST, *_CALLER, problems.NOT_FOUND, problems.BUSY, *refusals)),
        _parameter("order", "path", _UUID),
        takes="EmptyBody",
    )


def _show_order() -> Schema:
    return _operation(
        "order",
        "Show an order.",
        _answers(200, "Order", (*_CALLER, problems.NOT_FOUND)),
        _parameter("order", "path", _UUID),
    )


def _list_orders() -> Schema:
    return _operation(
        "orders",
        "List a page of the caller's orders, the newest first; `next` leads to the following one.",
        _answers(200, "Orders", (problems.INVALID, *_CALLER, problems.FORBIDDEN)),
        _parameter("cursor", "query", {"type": "string"}),
    )


def _list_products() -> Schema:
    return _operation(
        "products",
        "List a page of products; `next` leads to the following one.",
        _answers(200, "Products", (problems.INVALID,)),
        _parameter("after", "query", TypeAdapter(Sku).json_schema()),
    )


def _payment() -> Schema:
    kinds = (*_POST, problems.SIGNATURE, problems.NOT_FOUND, problems.BUSY)
    return _operation(
        "payment",
        "Receive an event of the payment provider, signed as Stripe signs; once, however often it comes.",
        _answers(200, "Payment", kinds),
        _parameter(SIGNATURE_HEADER, "header", {"type": "string"}),
        takes="PaymentNotice",
    )


@cache
def description() -> Schema:
    """Return the OpenAPI document."""
    pay = _change("pay", "Note that an order is paid.", problems.FORBIDDEN, problems.TOO_LATE)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": "1",
            "description": "A checkout that doesn't oversell. Errors: application/problem+json (RFC 9457). "
            "Methods that an address has not are answered 405, method-not-allowed.",
        },
        "paths": {
            "/checkout/": {"post": _checkout()},
            "/reservations/": {"post": _reserve()},
            "/reservations/{reservation}/": _reservation(),
            "/reservations/{reservation}/extend/": {"post": _extend()},
            "/orders/": {"get": _list_orders()},
            "/orders/{order}/": {"get": _show_order()},
            "/orders/{order}/pay/": {"post": pay},
            "/orders/{order}/cancel/": {"post": _change("cancel", "Cancel an order.", problems.ORDER_STATE)},
            "/payments/webhook/": {"post": _payment()},
            "/products/": {"get": _list_products()},
        },
        "components": {"schemas": _schemas(), "securitySchemes": _SECURITY},
        "security": [{}, {"apiKey": []}],
    }


_SECURITY: Final[Schema] = {
    "apiKey": {"type": "http", "scheme": "bearer", "description": "Where the shop asks for an API key."}
}

"""The interface described for programs, as OpenAPI 3.1; bounds and problems come from where they are kept."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from inventory.domain import MAX_LINES, MAX_QUANTITY, SKU_PATTERN
from inventory.reservations import MAX_TTL
from orders import problems
from orders.models import Order
from orders.parsing import DEFAULT_TTL
from orders.problems import PROBLEM_TYPES, ProblemType

Schema = dict[str, Any]

_PATTERN = SKU_PATTERN.replace(r"\Z", "$")
_MONEY: Schema = {"type": "string", "pattern": r"^\d+\.\d{2}$", "description": "a float can't be trusted"}
_UUID: Schema = {"type": "string", "format": "uuid"}
_TIME: Schema = {"type": "string", "format": "date-time"}
_CUSTOMER: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": 100,
    "pattern": r"^[ -~]+$",
    "description": "Who buys, for limits a customer and as the scope of keys. The shop in front checks it.",
}
_SERVER = (problems.UNAVAILABLE, problems.OUTCOME_UNKNOWN)
_BODY = (problems.INVALID, problems.TOO_LARGE, problems.MEDIA_TYPE)


def _object(required: Iterable[str] = (), *, closed: bool = True, **properties: Schema) -> Schema:
    names = list(required) or list(properties)
    return {
        "type": "object",
        "properties": properties,
        "required": names,
        **({"additionalProperties": False} if closed else {}),
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _schemas() -> dict[str, Schema]:
    quantity = {"type": "integer", "minimum": 1, "maximum": MAX_QUANTITY}
    line = _object(sku={"type": "string", "pattern": _PATTERN}, quantity=quantity)
    lines = {"type": "array", "items": _ref("Line"), "minItems": 1, "maxItems": MAX_LINES}
    bought = _object(sku={"type": "string"}, quantity=quantity, unit_price=_MONEY)
    ttl = {"type": "integer", "minimum": 1, "maximum": int(MAX_TTL.total_seconds()), "default": DEFAULT_TTL}
    return {
        "Line": line,
        "Cart": {
            "oneOf": [
                _object(("lines",), lines=lines, customer=_CUSTOMER),
                _object(("reservation",), reservation=_UUID, customer=_CUSTOMER),
            ],
            "description": "What to buy: lines, or a reservation. Under DEBUG `strategy` may be chosen, too.",
        },
        "Order": _object(
            id=_UUID,
            state={"type": "string", "enum": list(Order.State.values)},
            total=_MONEY,
            strategy={"type": "string"},
            customer={"type": "string"},
            created_at=_TIME,
            pay_by={"type": ["string", "null"], "format": "date-time"},
            lines={"type": "array", "items": bought, "minItems": 1},
        ),
        "Wish": _object(("lines",), lines=lines, ttl=ttl, customer=_CUSTOMER),
        "Reservation": _object(reservation=_UUID, expires_at=_TIME, lines=lines),
        "Product": _object(
            sku={"type": "string", "pattern": _PATTERN},
            name={"type": "string"},
            price=_MONEY,
            on_hand={"type": "integer"},
            available={"type": "integer"},
        ),
        "Products": _object(
            products={"type": "array", "items": _ref("Product")}, next={"type": ["string", "null"]}
        ),
        "Problem": _object(
            ("type", "title", "status", "detail"),
            closed=False,
            type={"type": "string", "enum": [f"/problems/#{kind.slug}" for kind in PROBLEM_TYPES]},
            title={"type": "string"},
            status={"type": "integer"},
            detail={"type": "string"},
        ),
    }


def _answers(status: int, schema: str | None, kinds: Iterable[ProblemType], **headers: str) -> Schema:
    """Return the answers of an operation: the good one, and a problem for each status of `kinds`."""
    good: Schema = {"description": "done"}
    if schema:
        good["content"] = {"application/json": {"schema": _ref(schema)}}
    if headers:
        good["headers"] = {name: {"schema": {"type": kind}} for name, kind in headers.items()}
    answers = {str(status): good}
    for kind in (*kinds, problems.METHOD, *_SERVER):
        answer = answers.setdefault(str(kind.status.value), _problem())
        answer["description"] = f"{answer['description']} {kind.slug}: {kind.title}.".strip()
    return answers


def _problem() -> Schema:
    return {"description": "", "content": {"application/problem+json": {"schema": _ref("Problem")}}}


def _takes(schema: Schema) -> Schema:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _parameter(name: str, where: str, schema: Schema) -> Schema:
    return {"name": name, "in": where, "required": where == "path", "schema": schema}


def _checkout() -> Schema:
    refusals = (problems.SOLD_OUT, problems.LIMIT, problems.RESERVATION_GONE, problems.BUSY)
    keys = (problems.KEY_MISSING, problems.KEY_IN_PROGRESS, problems.KEY_REUSED)
    key = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[!#-~]+$"}
    return {
        "operationId": "checkout",
        "summary": "Place an order. A repeated Idempotency-Key gets the first answer again.",
        "parameters": [_parameter("Idempotency-Key", "header", key)],
        "requestBody": _takes(_ref("Cart")),
        "responses": _answers(
            201, "Order", (*_BODY, problems.NOT_FOUND, *refusals, *keys), Location="string"
        ),
    }


def _reserve() -> Schema:
    kinds = (*_BODY, problems.SOLD_OUT, problems.LIMIT, problems.BUSY)
    return {
        "operationId": "reserve",
        "summary": "Keep units for a while; checkout takes the reservation's id.",
        "requestBody": _takes(_ref("Wish")),
        "responses": _answers(201, "Reservation", kinds, Location="string"),
    }


def _release() -> Schema:
    kinds = (problems.NOT_FOUND, problems.RESERVATION_GONE, problems.BUSY)
    return {
        "operationId": "release",
        "summary": "Give a reservation's units back before its time.",
        "parameters": [_parameter("reservation", "path", _UUID)],
        "responses": _answers(204, None, kinds),
    }


def _change(verb: str, summary: str, *refusals: ProblemType) -> Schema:
    return {
        "operationId": verb,
        "summary": summary,
        "parameters": [_parameter("order", "path", _UUID)],
        "requestBody": _takes({"type": "object", "maxProperties": 0}),
        "responses": _answers(200, "Order", (*_BODY, problems.NOT_FOUND, *refusals)),
    }


def _show_order() -> Schema:
    return {
        "operationId": "order",
        "summary": "Show an order.",
        "parameters": [_parameter("order", "path", _UUID)],
        "responses": _answers(200, "Order", (problems.NOT_FOUND,)),
    }


def _list_products() -> Schema:
    return {
        "operationId": "products",
        "summary": "List a page of products; `next` leads to the following one.",
        "parameters": [_parameter("after", "query", {"type": "string", "pattern": _PATTERN})],
        "responses": _answers(200, "Products", (problems.INVALID,)),
    }


@cache
def description() -> Schema:
    """Return the OpenAPI document."""
    late, state = problems.TOO_LATE, problems.ORDER_STATE
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": "1",
            "description": "A checkout that doesn't oversell. Errors: application/problem+json (RFC 9457).",
        },
        "paths": {
            "/checkout/": {"post": _checkout()},
            "/reservations/": {"post": _reserve()},
            "/reservations/{reservation}/": {"delete": _release()},
            "/orders/{order}/": {"get": _show_order()},
            "/orders/{order}/pay/": {"post": _change("pay", "Note that an order is paid.", late)},
            "/orders/{order}/cancel/": {"post": _change("cancel", "Cancel an order.", state)},
            "/products/": {"get": _list_products()},
        },
        "components": {"schemas": _schemas()},
    }

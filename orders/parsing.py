"""From the bytes of a request to values that can be trusted, before any I/O.

`orders.schemas` says what is valid. Every fault is reported at once, each with a JSON pointer (RFC 6901) to
the field and what to do about it: a client that learns of its faults one by one retries blindly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar, get_args
from uuid import UUID

from annotated_types import Ge, Le
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from inventory.domain import MAX_LINES, MAX_QUANTITY, SKU_PATTERN, Line
from orders.schemas import Cart, RequestBody, ReservedCart
from orders.selectors import Cursor
from orders.wording import pointer_step, shown

Body = TypeVar("Body", bound=BaseModel)

MAX_BODY_BYTES = 64 * 1024
MAX_FAULTS = 20  # enough to fix a client, too few to make a small request a large answer


@dataclass(frozen=True)
class Fault:
    """One thing wrong with a request: where (a JSON pointer, "" for the whole body) and why."""

    pointer: str
    detail: str


class InvalidRequest(Exception):
    """The request can't be understood; `faults` says why, field by field."""

    def __init__(self, *faults: Fault) -> None:
        self.faults = faults[:MAX_FAULTS]
        super().__init__("; ".join(f"{fault.pointer or 'body'}: {fault.detail}" for fault in self.faults))


@dataclass(frozen=True)
class CheckoutRequest:
    """What a client asked for: its lines as they came or a reservation, who it is, and the strategy it named,
    if any.
    """

    lines: tuple[Line, ...] = ()
    strategy: str | None = None
    customer: str = ""
    reservation: UUID | None = None


def parse_checkout(body: bytes, *, strategies: Callable[[], Iterable[str]]) -> CheckoutRequest:
    """Read the body of a checkout request.

    Args:
        body: the raw JSON, at most `MAX_BODY_BYTES` bytes (the view has refused longer ones).
        strategies: returns the names that the client may choose from, none where it may not choose; called
            only for a request that names one.

    Returns:
        Lines as they came (the checkout merges and sorts them), or the reservation; and what else was said.

    Raises:
        InvalidRequest: with one fault for each wrong field.

    Example:
        >>> parse_checkout(b'{"lines": [{"sku": "mug", "quantity": 2}]}', strategies=list)
        CheckoutRequest(lines=(Line(sku='mug', quantity=2),), strategy=None, customer='', reservation=None)
    """
    data = _object(body)
    if "reservation" in data:
        reserved = _checked(ReservedCart, data)
        return CheckoutRequest(customer=reserved.customer, reservation=reserved.reservation)
    cart = _checked(Cart, data, {"strategies": strategies})
    return CheckoutRequest(cart.cart(), cart.strategy or None, cart.customer)


def parse_after(after: str) -> str:
    """Return the SKU after which a page begins ("" for the first page).

    Raises:
        InvalidRequest: it can't be a SKU; NUL, for one, would be an error in the database.
    """
    if after and not re.match(SKU_PATTERN, after):
        raise InvalidRequest(
            Fault("", f"has after={shown(after)} in its address, which is no SKU; follow `next`")
        )
    return after


def parse_cursor(cursor: str) -> Cursor | None:
    """Return where a page of orders begins; None for the first page.

    Raises:
        InvalidRequest: it isn't a cursor that was given out.
    """
    try:
        return Cursor.parse(cursor) if cursor else None
    except ValueError:  # of base64, of Unicode, of the date and of the id
        raise InvalidRequest(
            Fault("", f"has cursor={shown(cursor)} in its address, which is no cursor; follow `next`")
        ) from None


def unknown_products(lines: Sequence[Line], skus: Iterable[str]) -> InvalidRequest:
    """Return the error for lines whose SKUs aren't in the catalogue, with a pointer to each."""
    unknown = frozenset(skus)
    return InvalidRequest(
        *(
            Fault(
                f"/lines/{index}/sku",
                f"{shown(line.sku)}: no product has this SKU; GET /products/ lists them",
            )
            for index, line in enumerate(lines)
            if line.sku in unknown
        )
    )


def validated(model: type[Body], body: bytes) -> Body:
    """Return the body of a request as `model`.

    Raises:
        InvalidRequest: with one fault for each wrong field.
    """
    return _checked(model, _object(body))


def _checked(model: type[Body], data: dict[str, Any], context: dict[str, Any] | None = None) -> Body:
    try:
        return model.model_validate(data, context=context)
    except ValidationError as error:
        # Members that the body doesn't have come first: most often a name is misspelled.
        faults = sorted(error.errors(include_url=False), key=_is_about_a_field)
        raise InvalidRequest(*(_fault(model, fault) for fault in faults)) from None


def _is_about_a_field(error: ErrorDetails) -> bool:
    return error["type"] != "extra_forbidden" or len(error["loc"]) > 1


# Reading the JSON ------------------------------------------------------------------------------------------


def _load(body: bytes) -> Any:
    if not body.strip():
        _refuse('is empty; send an object such as {"lines": [{"sku": "mug", "quantity": 1}]}')
    try:
        return _READER.decode(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        _refuse(f"is not UTF-8 (byte {error.start}); send UTF-8")
    except json.JSONDecodeError as error:
        _refuse(f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}")
    except RecursionError:
        _refuse("is nested too deeply; an order is an object with one array of flat objects")
    except ValueError:  # the interpreter's own limit on the digits of an integer
        _refuse(f"holds a number with too many digits; a quantity is at most {MAX_QUANTITY}")


def _object(body: bytes) -> dict[str, Any]:
    data = _load(body)
    if not isinstance(data, dict):
        _refuse(f'must be an object such as {{"lines": [...]}}, not {shown(data)}')
    return data


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse {"quantity": 1, "quantity": 9}: parsers differ on which one counts."""
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            _refuse(f"has the key {shown(key)} twice in one object; keep one of them")
        seen[key] = value
    return seen


def _refuse_constant(name: str) -> NoReturn:
    _refuse(f"is not JSON: {name} is not a JSON number")


_READER: Final = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
"""Made once: `json.loads` makes one for each text. It finds keys that come twice; pydantic's own doesn't."""


def _refuse(detail: str) -> NoReturn:
    raise InvalidRequest(Fault("", detail))


# From an error of the library to a fault -------------------------------------------------------------------


def _fault(model: type[BaseModel], error: ErrorDetails) -> Fault:
    pointer = "".join(f"/{pointer_step(step)}" for step in error["loc"])
    return Fault(pointer, _reason(model, error))


def _reason(model: type[BaseModel], error: ErrorDetails) -> str:
    """Say what is wrong with the value, and what it must be."""
    value = error["input"]
    match error["type"]:
        case "reason":
            return error["msg"]
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return _unknown(_owner(model, error["loc"]), str(error["loc"][-1]))
        case "string_unicode" if not error["loc"] or isinstance(error["loc"][-1], int):
            return f"has the member {shown(value)}, whose name is not Unicode; leave it out"
        case "model_type":
            return f'must be an object such as {{"sku": "mug", "quantity": 1}}, not {shown(value)}'
        case "list_type":
            return f"must be {_about(model, error)}, not {shown(value)}"
        case "too_short" | "too_long":
            return f"has {len(value)} lines; an order has 1 to {MAX_LINES}"
        case "greater_than_equal" | "less_than_equal":
            return f"{shown(value)}: must be {_bounds(_field(model, error['loc']))}"
    return f"{shown(value)}: must be {_about(model, error)}"


def _unknown(owner: type[BaseModel], name: str) -> str:
    unwanted = owner.UNWANTED if issubclass(owner, RequestBody) else {}
    known = ", ".join(owner.model_fields) or "none"
    return unwanted.get(name, f"is not a known field; known here: {known}")


def _about(model: type[BaseModel], error: ErrorDetails) -> str:
    """Return the field's description, or the library's own words for a field that has none."""
    field = _field(model, error["loc"])
    return (field.description if field else None) or error["msg"].removeprefix("Input should be ")


def _bounds(field: FieldInfo | None) -> str:
    limits = field.metadata if field else []
    least = next(limit.ge for limit in limits if isinstance(limit, Ge))
    most = next(limit.le for limit in limits if isinstance(limit, Le))
    return f"between {least} and {most}"


def _field(model: type[BaseModel], loc: Sequence[str | int]) -> FieldInfo | None:
    """Return the field that an error is about; an element of an array is about the array's."""
    named = [step for step in loc if isinstance(step, str)]
    return _owner(model, named).model_fields.get(named[-1]) if named else None


def _owner(model: type[BaseModel], loc: Sequence[str | int]) -> type[BaseModel]:
    """Return the model that has the last member of `loc`."""
    for step in loc[:-1]:
        if isinstance(step, str) and (field := model.model_fields.get(step)):
            model = _model_in(field.annotation) or model
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)

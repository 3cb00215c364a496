"""From the bytes of a request to values that can be trusted, before any I/O.

`orders.http.bodies` says what is valid. Every fault is reported at once, each with a JSON pointer (RFC 6901)
to the field and what to do about it: a client that learns of its faults one by one retries blindly.
"""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn, TypeVar

from django.http import HttpRequest
from ninja.parser import Parser
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from inventory.domain import MAX_QUANTITY
from orders.http import bodies
from orders.http.bodies import Cart, ReservedCart
from orders.http.problems import MEDIA_TYPE, TOO_LARGE, Problem, invalid, shown

Body = TypeVar("Body", bound=BaseModel)

MAX_BODY_BYTES: Final = 64 * 1024
MAX_FAULTS: Final = 20  # enough to fix a client, too few to make a small request a large answer

_EMPTY: Final = 'is empty; send an object such as {"lines": [{"sku": "mug", "quantity": 1}]}'


def require_small_json(request: HttpRequest) -> None:
    """Refuse by the headers alone, before a byte of the body is read.

    Raises:
        Problem: the body is not plain JSON in UTF-8, or too long.
    """
    charset = (request.content_params or {}).get("charset", "utf-8")
    encoding = request.META.get("HTTP_CONTENT_ENCODING", "identity")
    if request.content_type != "application/json" or charset.lower() not in ("utf-8", "utf8"):
        given = request.headers.get("Content-Type") or "missing"
        raise Problem(MEDIA_TYPE, f"Content-Type is {given[:80]}; send application/json in UTF-8.")
    if encoding.lower() != "identity":
        raise Problem(MEDIA_TYPE, f"Content-Encoding is {encoding[:80]}; send the body uncompressed.")
    if int(request.META.get("CONTENT_LENGTH") or 0) > MAX_BODY_BYTES:
        raise Problem(TOO_LARGE, f"The body is larger than {MAX_BODY_BYTES} bytes.")


def read_cart(body: bytes) -> Cart | ReservedCart:
    """Return the body of a checkout.

    Raises:
        Problem: it is invalid, with one fault for each wrong field.

    Example:
        >>> read_cart(b'{"lines": [{"sku": "mug", "quantity": 2}]}').cart()
        (Line(sku='mug', quantity=2),)
    """
    data = load(body)
    return checked(ReservedCart, data) if "reservation" in data else checked(Cart, data)


def checked(model: type[Body], data: dict[str, Any]) -> Body:
    """Return `data` as `model`.

    Raises:
        Problem: it is invalid, with one fault for each wrong field.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise faulty(error) from None


def faulty(error: ValidationError, skip: int = 0) -> Problem:
    """Return the problem of a wrong body; the first `skip` steps of each place are not the body's."""
    faults = [(each, each["loc"][skip:]) for each in error.errors(include_url=False)]
    # Members that the body doesn't have come first: most often a name is misspelled.
    faults.sort(key=lambda fault: fault[0]["type"] != "extra_forbidden" or len(fault[1]) > 1)
    return invalid(*((_pointer(loc), _reason(each, loc)) for each, loc in faults[:MAX_FAULTS]))


def faulty_query(error: ValidationError) -> Problem:
    """Return the problem of an address with wrong parameters."""
    errors = error.errors(include_url=False)
    said = [(each["loc"][-1], shown(each["input"]), _must_be(each, each["loc"])) for each in errors]
    return invalid(*(("", f"has {name}={value} in its address: {reason}") for name, value, reason in said))


def _reason(error: ErrorDetails, place: tuple[int | str, ...]) -> str:
    """Say what is wrong with the value, and what it must be."""
    match error["type"]:
        case "reason":
            return error["msg"]
        case "missing":
            return "is missing" if place else _EMPTY
        case "extra_forbidden":
            return "is not a known field; leave it out"
        case "model_type":
            return f"{shown(error['input'])}: must be an object"
    return f"{shown(error['input'])}: {_must_be(error, place)}"


def _must_be(error: ErrorDetails, place: tuple[int | str, ...]) -> str:
    """Complete *must be* by the field's description, or return pydantic's own words."""
    described = _DESCRIBED.get(str(place[-1])) if place else None
    return f"must be {described}" if described else error["msg"].replace("Input should be", "must be")


_DESCRIBED: Final = {
    name: field.description
    for model in (bodies.Line, Cart, ReservedCart, bodies.Reserve, bodies.Paging)
    for name, field in model.model_fields.items()
}


def _pointer(place: tuple[int | str, ...]) -> str:
    """Return the JSON pointer, each step escaped, printable and short."""
    steps = (step if isinstance(step, int) else shown(step)[1:-1] for step in place)
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


# Reading the JSON ------------------------------------------------------------------------------------------


class JsonParser(Parser):
    """Reads JSON for django-ninja as strictly as for the checkout."""

    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        """Return the body as an object."""
        return load(request.body)


def load(body: bytes) -> dict[str, Any]:
    """Return the object that `body` is.

    Raises:
        Problem: it is no JSON object in UTF-8, or has a key twice in one object.
    """
    if not body.strip():
        _refuse(_EMPTY)
    try:
        data = _READER.decode(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        _refuse(f"is not UTF-8 (byte {error.start}); send UTF-8")
    except json.JSONDecodeError as error:
        _refuse(f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}")
    except RecursionError:
        _refuse("is nested too deeply; an order is an object with one array of flat objects")
    except ValueError:  # the interpreter's own limit on the digits of an integer
        _refuse(f"holds a number with too many digits; a quantity is at most {MAX_QUANTITY}")
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
    raise invalid(("", detail))

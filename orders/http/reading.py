"""From the bytes of a request to values that can be trusted, before any I/O.

`orders.http.bodies` says what is valid. Every fault is reported at once, each with a JSON pointer (RFC 6901)
to the field and what to do about it: a client that learns of its faults one by one retries blindly.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, NoReturn, TypeVar, get_args

from django.http import HttpRequest
from ninja.parser import Parser
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from inventory.domain import MAX_LINES, MAX_QUANTITY
from orders.http.bodies import Cart, ReservedCart
from orders.http.problems import MEDIA_TYPE, TOO_LARGE, Problem, invalid

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
    return checked(ReservedCart if "reservation" in data else Cart, data)


def checked(model: type[Body], data: dict[str, Any]) -> Body:
    """Return `data` as `model`.

    Raises:
        Problem: it is invalid, with one fault for each wrong field.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise faulty(model, error) from None


def faulty(model: type[BaseModel], error: ValidationError, skip: int = 0) -> Problem:
    """Return the problem of a body that isn't a `model`; the first `skip` steps of each place aren't its own."""
    details = [{**each, "loc": each["loc"][skip:]} for each in error.errors(include_url=False)]
    # Members that the body doesn't have come first: most often a name is misspelled.
    details.sort(key=lambda each: each["type"] != "extra_forbidden" or len(each["loc"]) > 1)
    return invalid(*(_fault(model, each) for each in details[:MAX_FAULTS]))  # type: ignore[arg-type]


def faulty_query(errors: Iterable[ErrorDetails], model: type[BaseModel]) -> Problem:
    """Return the problem of an address whose parameters aren't a `model`."""
    return invalid(
        *(
            ("", f"has {each['loc'][-1]}={shown(each['input'])} in its address: {_must_be(model, each)}")
            for each in errors
        )
    )


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


# From an error of pydantic to a fault ----------------------------------------------------------------------


def _fault(model: type[BaseModel], error: ErrorDetails) -> tuple[str, str]:
    pointer = "".join(f"/{_step(step)}" for step in error["loc"])
    return pointer, _reason(model, error)


def _reason(model: type[BaseModel], error: ErrorDetails) -> str:
    """Say what is wrong with the value, and what it must be."""
    value, place = error["input"], error["loc"]
    match error["type"]:
        case "reason":
            return error["msg"]
        case "missing":
            return "is missing" if place else _EMPTY
        case "extra_forbidden":
            return f"is not a known field; known here: {', '.join(_owner(model, place).model_fields) or 'none'}"
        case "string_unicode" if not place or isinstance(place[-1], int):
            return f"has the member {shown(value)}, whose name is not Unicode; leave it out"
        case "model_type":
            return f'must be an object such as {{"sku": "mug", "quantity": 1}}, not {shown(value)}'
        case "too_short" | "too_long":
            return f"has {len(value)} lines; an order has 1 to {MAX_LINES}"
    return f"{shown(value)}: {_must_be(model, error)}"


def _must_be(model: type[BaseModel], error: ErrorDetails) -> str:
    """Complete *must be* by the field's description, or return pydantic's own words."""
    field = next((step for step in reversed(error["loc"]) if isinstance(step, str)), "")
    known = _owner(model, error["loc"]).model_fields.get(field)
    described = known.description if known and error["type"] != "choice" else None
    return f"must be {described}" if described else error["msg"].replace("Input should be", "must be")


def _owner(model: type[BaseModel], place: tuple[str | int, ...]) -> type[BaseModel]:
    """Return the model whose member the last name in `place` is."""
    names = [step for step in place if isinstance(step, str)]
    for name in names[:-1]:
        field = model.model_fields.get(name)
        inner = [field.annotation, *get_args(field.annotation)] if field else []
        model = next((each for each in inner if isinstance(each, type) and issubclass(each, BaseModel)), model)
    return model


# How values are shown ---------------------------------------------------------------------------------------

_KINDS: Final[dict[type, str]] = {dict: "an object", list: "an array"}


def shown(value: Any) -> str:
    """Show a value as JSON, ASCII only and cut short, and containers by their kind alone.

    Example:
        >>> shown("mug"), shown([1, 2])
        ('"mug"', 'an array')
    """
    if type(value) in _KINDS:
        return _KINDS[type(value)]
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _step(name: str | int) -> str:
    """Return one step of a JSON pointer, escaped, printable and short."""
    return str(name) if isinstance(name, int) else shown(name)[1:-1].replace("~", "~0").replace("/", "~1")

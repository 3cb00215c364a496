"""From the bytes of a checkout request to lines that can be trusted, before any I/O.

Every fault is reported at once, each with a JSON pointer (RFC 6901) to the field and what to do about it: a
client that learns of its faults one by one retries blindly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn
from uuid import UUID

from inventory.domain import MAX_LINES, MAX_QUANTITY, SKU_PATTERN, InvalidCart, Line
from inventory.reservations import MAX_TTL

MAX_BODY_BYTES = 64 * 1024
MAX_FAULTS = 20  # enough to mend a client, too few to make a small request a large answer

DEFAULT_TTL = 600  # seconds of a reservation
_FIELDS = ("lines", "reservation", "customer", "strategy")
_CUSTOMER = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,100}\Z")
_MAX_TTL = int(MAX_TTL.total_seconds())
_GOOD_LINE: dict[str, Any] = {"sku": "mug", "quantity": 1}
_KINDS: dict[type, str] = {dict: "an object", list: "an array"}


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


@dataclass(frozen=True)
class ReservationRequest:
    """What a client wants kept, for how many seconds, and who it is."""

    lines: tuple[Line, ...]
    ttl: int = DEFAULT_TTL
    customer: str = ""


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
    reserved = "reservation" in data
    faults = [*_field_faults("", data, _FIELDS, required=() if reserved else ("lines",))]
    faults += _lines_faults(data["lines"]) if "lines" in data else []
    faults += _customer_faults(data)
    if reserved:
        faults += _reservation_faults(data)
    if "strategy" in data:
        faults += _strategy_faults(data["strategy"], sorted(strategies()))
    if faults:
        raise InvalidRequest(*faults)
    return CheckoutRequest(
        _lines(data),
        data.get("strategy"),
        data.get("customer", ""),
        UUID(data["reservation"]) if reserved else None,
    )


def parse_reservation(body: bytes) -> ReservationRequest:
    """Read the body of a request to reserve: `lines`, and if wanted `ttl` (seconds) and `customer`.

    Raises:
        InvalidRequest: with one fault for each wrong field.
    """
    data = _object(body)
    faults = [*_field_faults("", data, ("lines", "ttl", "customer"), required=("lines",))]
    faults += _lines_faults(data["lines"]) if "lines" in data else []
    faults += _customer_faults(data)
    ttl = data.get("ttl", DEFAULT_TTL)
    if isinstance(ttl, bool) or not isinstance(ttl, int) or not 1 <= ttl <= _MAX_TTL:
        faults.append(Fault("/ttl", f"{_shown(ttl)}: must be a whole number of seconds, 1 to {_MAX_TTL}"))
    if faults:
        raise InvalidRequest(*faults)
    return ReservationRequest(_lines(data), ttl, data.get("customer", ""))


def parse_nothing(body: bytes) -> None:
    """Read the body of a request that says everything in its address: an empty object.

    Raises:
        InvalidRequest: it is something else.
    """
    faults = [*_field_faults("", _object(body), (), required=())]
    if faults:
        raise InvalidRequest(*faults)


def parse_after(after: str) -> str:
    """Return the SKU after which a page begins ("" for the first page).

    Raises:
        InvalidRequest: it can't be a SKU; NUL, for one, would be an error in the database.
    """
    if after and not re.match(SKU_PATTERN, after):
        raise InvalidRequest(
            Fault("", f"has after={_shown(after)} in its address, which is no SKU; follow `next`")
        )
    return after


def unknown_products(lines: Sequence[Line], skus: Iterable[str]) -> InvalidRequest:
    """Return the error for lines whose SKUs aren't in the catalogue, with a pointer to each."""
    unknown = frozenset(skus)
    return InvalidRequest(
        *(
            Fault(
                f"/lines/{index}/sku",
                f"{_shown(line.sku)}: no product has this SKU; GET /products/ lists them",
            )
            for index, line in enumerate(lines)
            if line.sku in unknown
        )
    )


# Reading the JSON ------------------------------------------------------------------------------------------


def _load(body: bytes) -> Any:
    if not body.strip():
        _refuse("", 'is empty; send an object such as {"lines": [{"sku": "mug", "quantity": 1}]}')
    try:
        return _READER.decode(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        _refuse("", f"is not UTF-8 (byte {error.start}); send UTF-8")
    except json.JSONDecodeError as error:
        _refuse("", f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}")
    except RecursionError:
        _refuse("", "is nested too deeply; an order is an object with one array of flat objects")
    except ValueError:  # the interpreter's own limit on the digits of an integer
        _refuse("", f"holds a number with too many digits; a quantity is at most {MAX_QUANTITY}")


def _object(body: bytes) -> dict[str, Any]:
    data = _load(body)
    if not isinstance(data, dict):
        _refuse("", f'must be an object such as {{"lines": [...]}}, not {_shown(data)}')
    return data


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse {"quantity": 1, "quantity": 9}: parsers differ on which one counts."""
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            _refuse("", f"has the key {_shown(key)} twice in one object; keep one of them")
        seen[key] = value
    return seen


def _refuse_constant(name: str) -> NoReturn:
    _refuse("", f"is not JSON: {name} is not a JSON number")


_READER: Final = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
"""Made once: `json.loads` makes one for each text."""


# Checking the fields ---------------------------------------------------------------------------------------


def _field_faults(
    at: str, found: Mapping[str, Any], known: Iterable[str], *, required: Iterable[str]
) -> Iterator[Fault]:
    for name in required:
        if name not in found:
            yield Fault(f"{at}/{name}", "is missing")
    for name in found:
        if name not in known:
            yield Fault(
                f"{at}/{_escape(name)}", f"is not a known field; known here: {', '.join(known) or 'none'}"
            )


def _lines_faults(lines: Any) -> Iterator[Fault]:
    if not isinstance(lines, list):
        yield Fault("/lines", f"must be an array of lines, not {_shown(lines)}")
    elif not 1 <= len(lines) <= MAX_LINES:
        yield Fault("/lines", f"has {len(lines)} lines; an order has 1 to {MAX_LINES}")
    else:
        for index, line in enumerate(lines):
            yield from _line_faults(f"/lines/{index}", line)


def _line_faults(at: str, line: Any) -> Iterator[Fault]:
    if _is_good(line):
        return
    if not isinstance(line, dict):
        yield Fault(at, f'must be an object such as {{"sku": "mug", "quantity": 1}}, not {_shown(line)}')
        return
    yield from _field_faults(at, line, tuple(_GOOD_LINE), required=_GOOD_LINE)
    for field in filter(line.__contains__, _GOOD_LINE):
        try:
            # Each value is tried beside a good one, so that a line wrong in both fields hears of both.
            Line(**{**_GOOD_LINE, field: line[field]})
        except InvalidCart as error:
            yield Fault(f"{at}/{field}", f"{_shown(line[field])}: {error.reason}")


def _is_good(line: Any) -> bool:
    """Whether there is nothing to tell of `line`, as of nearly every one."""
    try:
        Line(**line)
    except (InvalidCart, TypeError):
        return False
    return True


def _lines(data: Mapping[str, Any]) -> tuple[Line, ...]:
    return tuple(Line(**line) for line in data.get("lines", ()))


def _customer_faults(data: Mapping[str, Any]) -> Iterator[Fault]:
    customer = data.get("customer", "nobody")
    if not isinstance(customer, str) or not _CUSTOMER.match(customer):
        yield Fault(
            "/customer", f"{_shown(customer)}: must be a string of 1 to 100 characters that can be printed"
        )


def _reservation_faults(data: Mapping[str, Any]) -> Iterator[Fault]:
    for other in ("lines", "strategy"):
        if other in data:
            yield Fault(f"/{other}", "is not wanted beside a reservation, which has its own")
    try:
        UUID(data["reservation"])
    except (ValueError, TypeError, AttributeError):
        yield Fault("/reservation", f"{_shown(data['reservation'])}: must be the id of a reservation, a UUID")


def _strategy_faults(strategy: Any, allowed: list[str]) -> Iterator[Fault]:
    if not allowed:
        yield Fault("/strategy", "can be chosen only with DEBUG on; leave it out")
    elif not isinstance(strategy, str):
        yield Fault("/strategy", f"must be a string, not {_shown(strategy)}")
    elif strategy not in allowed:
        yield Fault("/strategy", f"{_shown(strategy)} is not one of {', '.join(allowed)}")


# Wording ---------------------------------------------------------------------------------------------------


def _refuse(pointer: str, detail: str) -> NoReturn:
    raise InvalidRequest(Fault(pointer, detail))


def _shown(value: Any) -> str:
    """Show a value as JSON, ASCII only and cut short, and containers by their kind alone."""
    if type(value) in _KINDS:
        return _KINDS[type(value)]
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _escape(name: str) -> str:
    """Escape one step of a JSON pointer (RFC 6901), keeping it printable and short."""
    return _shown(name)[1:-1].replace("~", "~0").replace("/", "~1")

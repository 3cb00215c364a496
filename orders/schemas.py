"""The bodies of requests and answers: what is written here validates, and is published at /openapi.json.

A field's description completes the sentence *must be …* in the answer to a request that is wrong there, and
explains the field to the reader of the document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar, Final, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, with_config
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from inventory.domain import MAX_LINES, MAX_QUANTITY, SKU_PATTERN, Line
from inventory.reservations import MAX_TTL
from orders.models import Order, PaymentEvent
from orders.wording import shown

DEFAULT_TTL: Final = 600
"""Seconds of a reservation."""

_MAX_TTL: Final = int(MAX_TTL.total_seconds())


def _without_default(schema: dict[str, Any]) -> None:
    """Publish no default for a field that may be left out: its stand-in could not be sent."""
    schema.pop("default", None)


# Rust's regular expressions, like JavaScript's, take $ for the very end: the text is published as it is.
Sku = Annotated[
    str,
    Field(
        pattern=SKU_PATTERN.replace(r"\Z", "$"),
        description="1 to 64 letters, digits, '.', '_' or '-', e.g. 'mug-01'",
    ),
]
Quantity = Annotated[int, Field(ge=1, le=MAX_QUANTITY, description="a whole number, e.g. 1")]
Ttl = Annotated[int, Field(ge=1, le=_MAX_TTL, description=f"a whole number of seconds, 1 to {_MAX_TTL}")]
Customer = Annotated[
    str,
    Field(
        min_length=1,
        max_length=100,
        pattern=r"^[^\x00-\x1f\x7f]*$",
        description="a string of 1 to 100 characters that can be printed",
        json_schema_extra=_without_default,
    ),
]


class RequestBody(BaseModel):
    """An object whose members are all known, and of the very type that is asked for."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    UNWANTED: ClassVar[dict[str, str]] = {}
    """What to say of members that belong to another body."""


class LineBody(RequestBody):
    """So many units of one product."""

    sku: Sku
    quantity: Quantity


Lines = Annotated[list[LineBody], Field(min_length=1, max_length=MAX_LINES, description="an array of lines")]


class _WithLines(RequestBody):
    lines: Lines

    def cart(self) -> tuple[Line, ...]:
        """Return the lines as the checkout takes them."""
        return tuple(Line(line.sku, line.quantity) for line in self.lines)


class Cart(_WithLines):
    """What to buy."""

    customer: Customer = ""
    strategy: Annotated[
        str,
        Field(description="only with DEBUG on: how the stock is taken", json_schema_extra=_without_default),
    ] = ""

    @field_validator("strategy", mode="before")
    @classmethod
    def _can_be_chosen(cls, given: Any, info: ValidationInfo) -> Any:
        allowed = list((info.context or _NO_CHOICE)["strategies"]())
        if not allowed:
            _refuse("can be chosen only with DEBUG on; leave it out")
        if not isinstance(given, str):
            _refuse(f"must be a string, not {shown(given)}")
        if given not in allowed:
            _refuse(f"{shown(given)} is not one of {', '.join(sorted(allowed))}")
        return given


class ReservedCart(RequestBody):
    """A reservation to buy."""

    UNWANTED = dict.fromkeys(("lines", "strategy"), "is not wanted beside a reservation, which has its own")

    reservation: Annotated[UUID, Field(strict=False, description="the id of a reservation, a UUID")]
    customer: Customer = ""


class ReservationBody(_WithLines):
    """What to reserve, and for how many seconds."""

    ttl: Ttl = DEFAULT_TTL
    customer: Customer = ""


class ExtensionBody(RequestBody):
    """For how many seconds from now a reservation is to last at least."""

    ttl: Ttl = DEFAULT_TTL


class EmptyBody(RequestBody):
    """Nothing: the address says everything."""


_NO_CHOICE: Final[dict[str, Callable[[], Iterable[str]]]] = {"strategies": list}


def _refuse(reason: str) -> None:
    raise PydanticCustomError("reason", "{reason}", {"reason": reason})


# Answers ----------------------------------------------------------------------------------------------------

_CLOSED: Final = ConfigDict(extra="forbid")

Money = Annotated[str, Field(pattern=r"^\d+\.\d{2}$", description="a string: a float cannot be trusted")]
Currency = Annotated[str, Field(pattern="^[A-Z]{3}$", description="ISO 4217, of the prices beside it")]
Id = Annotated[str, Field(json_schema_extra={"format": "uuid"})]
Moment = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
OrderState = Annotated[str, Field(json_schema_extra={"enum": list(Order.State.values)})]
PaymentOutcome = Annotated[str, Field(json_schema_extra={"enum": list(PaymentEvent.Outcome.values)})]


@with_config(_CLOSED)
class LineData(TypedDict):
    """A line of a reservation."""

    sku: str
    quantity: int


@with_config(_CLOSED)
class ItemData(TypedDict):
    """A line of an order, with the product's name and price of that moment."""

    sku: str
    name: str
    quantity: int
    unit_price: Money
    shipped: int


@with_config(_CLOSED)
class OrderData(TypedDict):
    """An order."""

    id: Id
    state: OrderState
    total: Money
    currency: Currency
    strategy: str
    customer: str
    created_at: Moment
    pay_by: Moment | None
    lines: list[ItemData]


@with_config(_CLOSED)
class OrdersData(TypedDict):
    """A page of orders, the newest first; `next` is the address of the following page."""

    orders: list[OrderData]
    next: str | None


@with_config(_CLOSED)
class ReservationData(TypedDict):
    """A reservation."""

    reservation: Id
    state: Literal["live", "used", "released", "expired"]
    expires_at: Moment
    lines: list[LineData]


@with_config(_CLOSED)
class ProductData(TypedDict):
    """A product for sale."""

    sku: Sku
    name: str
    price: Money
    currency: Currency
    on_hand: int
    available: int


@with_config(_CLOSED)
class ProductsData(TypedDict):
    """A page of products; `next` is the address of the following page."""

    products: list[ProductData]
    next: str | None


@with_config(_CLOSED)
class PaymentResult(TypedDict):
    """What an event of the payment provider did."""

    event: str
    outcome: PaymentOutcome
    repeated: bool

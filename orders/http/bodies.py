"""The bodies of requests and answers: what is written here validates, and is published at /openapi.json.

A field's description completes the sentence *must be …* in the answer to a request that is wrong there, and
explains the field to the reader of the document.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

import inventory
from orders import models
from orders.http.problems import shown
from orders.models import SKU_PATTERN
from orders.selling.cart import MAX_LINES, MAX_QUANTITY
from orders.selling.reservations import MAX_TTL
from orders.selling.strategies import choices

DEFAULT_TTL: Final = 600
"""Seconds of a reservation."""
PAGE: Final = 100
"""Entries on a page unless the client asks for fewer."""

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
        examples=["mug"],
    ),
]
Quantity = Annotated[
    int, Field(ge=1, le=MAX_QUANTITY, description=f"a whole number between 1 and {MAX_QUANTITY}")
]
Ttl = Annotated[
    int, Field(ge=1, le=_MAX_TTL, description=f"a whole number of seconds between 1 and {_MAX_TTL}")
]
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
ExpectedTotal = Annotated[
    Decimal | None,
    Field(
        strict=False,
        ge=0,
        max_digits=18,
        decimal_places=2,
        description="an amount in a string, e.g. '19.00': at another one the order is refused",
        json_schema_extra=_without_default,
    ),
]


class RequestBody(BaseModel):
    """An object whose members are all known, and of the very type that is asked for."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Line(RequestBody):
    """So many units of one product."""

    sku: Sku
    quantity: Quantity


class _WithLines(RequestBody):
    model_config = ConfigDict(json_schema_extra={"examples": [{"lines": [{"sku": "mug", "quantity": 1}]}]})

    lines: Annotated[
        list[Line],
        Field(min_length=1, max_length=MAX_LINES, description=f"an array of 1 to {MAX_LINES} lines"),
    ]
    customer: Customer = ""

    def cart(self) -> tuple[inventory.Line, ...]:
        """Return the lines as the checkout takes them."""
        return tuple([inventory.Line(line.sku, line.quantity) for line in self.lines])


class Cart(_WithLines):
    """What to buy."""

    expected_total: ExpectedTotal = None
    strategy: Annotated[
        str,
        Field(description="only with DEBUG on: how the stock is taken", json_schema_extra=_without_default),
    ] = ""

    @field_validator("strategy", mode="before")
    @classmethod
    def _can_be_chosen(cls, given: Any) -> Any:
        allowed = [choice.name for choice in choices()]
        if not allowed:
            raise PydanticCustomError("reason", "can be chosen only with DEBUG on; leave it out")
        if given not in allowed:
            said = {"given": shown(given), "allowed": ", ".join(sorted(allowed))}
            raise PydanticCustomError("reason", "{given}: must be one of {allowed}", said)
        return given


class ReservedCart(RequestBody):
    """A reservation to buy."""

    reservation: Annotated[UUID, Field(strict=False, description="the id of a reservation, a UUID")]
    customer: Customer = ""
    expected_total: ExpectedTotal = None


class Reserve(_WithLines):
    """What to reserve, and for how many seconds."""

    ttl: Ttl = DEFAULT_TTL


class Extension(RequestBody):
    """For how many seconds from now a reservation is to last at least."""

    ttl: Ttl = DEFAULT_TTL


class Empty(RequestBody):
    """Nothing: the address says everything."""


class Paging(BaseModel):
    """Which page of a list is asked for."""

    limit: Annotated[
        int, Field(ge=1, le=PAGE, description=f"a whole number between 1 and {PAGE}: entries on the page")
    ] = PAGE
    cursor: Annotated[
        str,
        Field(
            pattern="^[A-Za-z0-9_-]{0,200}$",
            description="the cursor of a page that was answered; follow `next`",
            json_schema_extra=_without_default,
        ),
    ] = ""


# Answers ----------------------------------------------------------------------------------------------------


class Answer(BaseModel):
    """An object whose members are all described."""

    model_config = ConfigDict(extra="forbid")


Money = Annotated[
    str, Field(pattern=r"^\d+\.\d{2}$", description="a string: a float cannot be trusted", examples=["19.00"])
]
Currency = Annotated[
    str, Field(pattern="^[A-Z]{3}$", description="ISO 4217, of the prices beside it", examples=["EUR"])
]
Id = Annotated[str, Field(json_schema_extra={"format": "uuid"})]
Moment = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
OrderState = Annotated[str, Field(json_schema_extra={"enum": list(models.Order.State.values)})]
PaymentOutcome = Annotated[str, Field(json_schema_extra={"enum": list(models.PaymentEvent.Outcome.values)})]
Next = Annotated[str | None, Field(description="the address of the following page, as in the header Link")]


class ReservedLine(Answer):
    """A line of a reservation, at the price that was agreed."""

    sku: str
    quantity: int
    unit_price: Money


class Item(Answer):
    """A line of an order, with the product's name and price of that moment."""

    sku: str
    name: str
    quantity: int
    unit_price: Money
    shipped: int


class Order(Answer):
    """An order."""

    id: Id
    number: Annotated[str, Field(description="what people call it; it is no secret")]
    state: OrderState
    total: Money
    currency: Currency
    strategy: str
    customer: str
    created_at: Moment
    pay_by: Moment | None
    lines: list[Item]


class Orders(Answer):
    """A page of orders, the newest first."""

    orders: list[Order]
    next: Next


class Reservation(Answer):
    """A reservation."""

    reservation: Id
    state: Literal["live", "sold", "released", "expired"]
    expires_at: Moment
    total: Money
    currency: Currency
    lines: list[ReservedLine]


class Product(Answer):
    """A product for sale."""

    sku: Sku
    name: str
    price: Money
    currency: Currency
    on_hand: int
    available: int


class Products(Answer):
    """A page of products, in the order of their SKUs."""

    products: list[Product]
    next: Next


class Payment(Answer):
    """What an event of the payment provider did."""

    event: str
    outcome: PaymentOutcome
    repeated: bool

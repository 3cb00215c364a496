"""The one place where what went wrong becomes an HTTP answer, an RFC 9457 problem.

*Sold out* is final (409). *Busy* and an outage are not (503, with Retry-After): a shop that mixes them up
turns buyers away from a full shelf. Where it can't be known whether the order was placed, the answer says so.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import singledispatch, wraps
from http import HTTPStatus
from traceback import walk_tb
from typing import Any

import psycopg
from django.core.exceptions import SuspiciousOperation
from django.db import DatabaseError, Error, InterfaceError, InternalError, OperationalError, transaction
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_noop
from django.views.decorators.csrf import csrf_exempt

from inventory.domain import (
    Busy,
    InvalidCart,
    LimitReached,
    MixedCurrencies,
    NotForSale,
    SoldOut,
    UnknownProduct,
)
from inventory.progress import DatabaseUnavailable, OutcomeUnknown, failures, refused_by_server
from inventory.reservations import ReservationGone
from locking import BackendError, LockLost, LockNotAcquired, StaleFencingToken
from orders.json_responses import json_answer
from orders.lifecycle import AlreadyShipped, OrderUnknown, PaymentTooLate, TransitionRefused
from orders.parsing import Fault, InvalidRequest
from orders.wording import shown

_View = Callable[..., HttpResponse]

logger = logging.getLogger(__name__)

NO_ORDER = "There is no order of this id."
NO_RESERVATION = "There is no reservation of this id."

_CONNECT = psycopg.Connection.connect.__code__

RETRY_AFTER_OUTAGE = 5  # seconds; long enough for a server to be restarted, short enough for a person to wait


@dataclass(frozen=True)
class ProblemType:
    """One kind of problem: what stays the same whenever it happens. Its page is `/problems/#<slug>`."""

    slug: str
    status: HTTPStatus
    title: str  # in English; the page of problems translates it
    meaning: str


INVALID = ProblemType(
    "invalid-request",
    HTTPStatus.BAD_REQUEST,
    gettext_noop("The request is not valid"),
    gettext_noop(
        "Each entry of errors has a JSON pointer to the field and the reason. Fix the request; sending it "
        "again as it is won't help."
    ),
)
SOLD_OUT = ProblemType(
    "sold-out",
    HTTPStatus.CONFLICT,
    gettext_noop("Not enough stock"),
    gettext_noop(
        "A final answer: nothing was ordered. Each entry of shortages has the SKU, the units requested and "
        "those available."
    ),
)
LIMIT = ProblemType(
    "customer-limit",
    HTTPStatus.CONFLICT,
    gettext_noop("More than one customer may have"),
    gettext_noop(
        "A final answer: nothing was ordered. The members sku, limit, bought and requested say why. Where "
        "customer is missing, send who buys."
    ),
)
NOT_FOR_SALE = ProblemType(
    "not-for-sale",
    HTTPStatus.CONFLICT,
    gettext_noop("Not for sale"),
    gettext_noop(
        "The member skus names products that can't be ordered at present. Take them out of the order."
    ),
)
MIXED_CURRENCIES = ProblemType(
    "mixed-currencies",
    HTTPStatus.CONFLICT,
    gettext_noop("Prices in several currencies"),
    gettext_noop(
        "An order has one total, in one currency. The member currencies has each product's: order those "
        "of each currency apart."
    ),
)
RESERVATION_GONE = ProblemType(
    "reservation-gone",
    HTTPStatus.CONFLICT,
    gettext_noop("The reservation has ended"),
    gettext_noop("It was used, released, or its time is over; the member state says which. Reserve again."),
)
TOO_LATE = ProblemType(
    "payment-too-late",
    HTTPStatus.CONFLICT,
    gettext_noop("The payment came too late"),
    gettext_noop(
        "The order was cancelled or had expired, and its units were given back. Nothing was sold: give the "
        "money back, and order again."
    ),
)
ORDER_STATE = ProblemType(
    "order-state",
    HTTPStatus.CONFLICT,
    gettext_noop("The order's state doesn't allow it"),
    gettext_noop("The member state says what the order is by now."),
)
KEY_IN_PROGRESS = ProblemType(
    "key-in-progress",
    HTTPStatus.CONFLICT,
    gettext_noop("The same request is still at work"),
    gettext_noop("Ask again with the same Idempotency-Key after the seconds in Retry-After."),
)
KEY_REUSED = ProblemType(
    "key-reused",
    HTTPStatus.UNPROCESSABLE_ENTITY,
    gettext_noop("The Idempotency-Key belongs to another request"),
    gettext_noop("Nothing was done. A key stands for one request; choose a new one for each."),
)
KEY_MISSING = ProblemType(
    "key-missing",
    HTTPStatus.BAD_REQUEST,
    gettext_noop("An Idempotency-Key is required"),
    gettext_noop("Nothing was done. Send the header with a value of your own, such as a UUID."),
)
TOO_MANY = ProblemType(
    "too-many-requests",
    HTTPStatus.TOO_MANY_REQUESTS,
    gettext_noop("Too many requests"),
    gettext_noop("Nothing was done. Try again after the seconds in Retry-After."),
)
BUSY = ProblemType(
    "busy",
    HTTPStatus.SERVICE_UNAVAILABLE,
    gettext_noop("Too busy right now"),
    gettext_noop(
        "Someone else had the same product or order for too long. Nothing was changed, and it may well be in "
        "stock: try again after the seconds in Retry-After."
    ),
)
UNAVAILABLE = ProblemType(
    "unavailable",
    HTTPStatus.SERVICE_UNAVAILABLE,
    gettext_noop("A server behind the shop doesn't answer"),
    gettext_noop("Nothing was changed. Try again after the seconds in Retry-After."),
)
OUTCOME_UNKNOWN = ProblemType(
    "outcome-unknown",
    HTTPStatus.SERVICE_UNAVAILABLE,
    gettext_noop("It isn't known whether the order was placed"),
    gettext_noop(
        "The connection or the lock was lost in the middle. Repeat the request with the same "
        "Idempotency-Key: the answer is the order if it was placed, and otherwise it is placed now, once. "
        "Without a key a second request may be a second order."
    ),
)
SIGNATURE = ProblemType(
    "signature-refused",
    HTTPStatus.BAD_REQUEST,
    gettext_noop("The signature is not valid"),
    gettext_noop(
        "Nothing was done. The detail says whether the header, the signature or its time is wrong. Sign the "
        "body as it is sent, with a secret that the shop knows, anew for each attempt."
    ),
)
UNAUTHORIZED = ProblemType(
    "unauthorized",
    HTTPStatus.UNAUTHORIZED,
    gettext_noop("Authentication is required"),
    gettext_noop("Nothing was done. Send the credentials that the header WWW-Authenticate asks for."),
)
FORBIDDEN = ProblemType(
    "forbidden",
    HTTPStatus.FORBIDDEN,
    gettext_noop("Not allowed for this caller"),
    gettext_noop("Nothing was done. The detail says which right is missing, and who has it."),
)
NOT_FOUND = ProblemType(
    "not-found",
    HTTPStatus.NOT_FOUND,
    gettext_noop("Not found"),
    gettext_noop("There is nothing at this address."),
)
METHOD = ProblemType(
    "method-not-allowed",
    HTTPStatus.METHOD_NOT_ALLOWED,
    gettext_noop("Method not allowed"),
    gettext_noop("The header Allow names the methods that this address answers."),
)
TOO_LARGE = ProblemType(
    "too-large",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    gettext_noop("The request is too large"),
    gettext_noop("Send fewer lines in one order."),
)
MEDIA_TYPE = ProblemType(
    "media-type",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    gettext_noop("Not JSON"),
    gettext_noop("A request has the header Content-Type: application/json, in UTF-8 and not compressed."),
)

PROBLEM_TYPES = (
    INVALID,
    KEY_MISSING,
    SIGNATURE,
    UNAUTHORIZED,
    FORBIDDEN,
    NOT_FOUND,
    METHOD,
    SOLD_OUT,
    LIMIT,
    NOT_FOR_SALE,
    MIXED_CURRENCIES,
    RESERVATION_GONE,
    TOO_LATE,
    ORDER_STATE,
    KEY_IN_PROGRESS,
    TOO_LARGE,
    MEDIA_TYPE,
    KEY_REUSED,
    TOO_MANY,
    BUSY,
    UNAVAILABLE,
    OUTCOME_UNKNOWN,
)


class Problem(Exception):
    """A problem that happened: its type, what is particular to this time, extra members and headers."""

    def __init__(
        self, kind: ProblemType, detail: str, *, headers: dict[str, str] | None = None, **members: Any
    ) -> None:
        self.kind = kind
        self.detail = detail
        self.headers = headers or {}
        self.members = members
        super().__init__(detail)


def document(problem: Problem) -> dict[str, Any]:
    """Return the members of the problem's body."""
    return {
        "type": f"/problems/#{problem.kind.slug}",
        "title": problem.kind.title,
        "status": problem.kind.status.value,
        "detail": problem.detail,
        **problem.members,
    }


def respond(problem: Problem) -> HttpResponse:
    """Return the problem as `application/problem+json`."""
    return json_answer(
        document(problem),
        status=problem.kind.status,
        media="application/problem+json",
        headers=problem.headers,
    )


# From an error to its problem ------------------------------------------------------------------------------


@singledispatch
def problem_of(error: Exception) -> Problem:
    """Return what to tell the client about `error`; what isn't registered below is a bug and is raised."""
    raise error


@problem_of.register
def _(error: Problem) -> Problem:
    return error


@problem_of.register
def _(error: InvalidRequest) -> Problem:
    return _invalid(error.faults)


@problem_of.register
def _(error: SuspiciousOperation) -> Problem:
    """Return what to tell about a request that Django doesn't read: too many parameters in its address."""
    return _invalid([Fault("", f"can't be read: {error}")])


@problem_of.register
def _(error: InvalidCart) -> Problem:
    return _invalid([Fault("/lines", str(error))])


@problem_of.register
def _(error: UnknownProduct) -> Problem:
    """Return what to tell where the lines as the client wrote them, and so their places, aren't at hand."""
    return _invalid([Fault("/lines", f"{shown(sku)}: no product has this SKU") for sku in error.skus])


@problem_of.register
def _(error: SoldOut) -> Problem:
    skus = ", ".join(shortage.sku for shortage in error.shortages)
    shortages = [
        {"sku": short.sku, "requested": short.requested, "available": short.available}
        for short in error.shortages
    ]
    return Problem(SOLD_OUT, f"Not enough of {skus}; nothing was ordered.", shortages=shortages)


@problem_of.register
def _(error: LimitReached) -> Problem:
    members = {name: getattr(error, name) for name in ("sku", "limit", "bought", "requested")}
    return Problem(
        LIMIT, f"One customer may have {error.limit} of {error.sku}; nothing was ordered.", **members
    )


@problem_of.register
def _(error: NotForSale) -> Problem:
    skus = ", ".join(error.skus)
    return Problem(NOT_FOR_SALE, f"{skus} can't be ordered; nothing was ordered.", skus=list(error.skus))


@problem_of.register
def _(error: MixedCurrencies) -> Problem:
    named = ", ".join(sorted(set(error.currencies.values())))
    return Problem(
        MIXED_CURRENCIES, f"Prices are in {named}; nothing was ordered.", currencies=error.currencies
    )


@problem_of.register
def _(error: ReservationGone) -> Problem:
    if error.state is None:
        return Problem(NOT_FOUND, NO_RESERVATION)
    return Problem(RESERVATION_GONE, f"The reservation is {error.state}.", state=str(error.state))


@problem_of.register
def _(error: OrderUnknown) -> Problem:
    return Problem(NOT_FOUND, NO_ORDER)


@problem_of.register
def _(error: TransitionRefused) -> Problem:
    return Problem(ORDER_STATE, f"The order is {error.state}.", state=str(error.state))


@problem_of.register
def _(error: AlreadyShipped) -> Problem:
    return Problem(
        ORDER_STATE,
        "Units of this order have left the building, so it can't be cancelled; send them back instead.",
        state=str(error.state),
    )


@problem_of.register
def _(error: PaymentTooLate) -> Problem:
    return Problem(TOO_LATE, f"The order is {error.state}; nothing was sold.", state=str(error.state))


@problem_of.register
def _(error: Busy) -> Problem:
    return _try_again(BUSY, "The stock was busy for too long; nothing was changed.", error.retry_after)


@problem_of.register
def _(error: LockNotAcquired) -> Problem:
    # The holder and the key stay in the log: who buys what is not the next buyer's business.
    return _try_again(
        BUSY, "Someone else was buying this for too long; nothing was changed.", error.retry_after or 1
    )


@problem_of.register
def _(error: StaleFencingToken) -> Problem:
    return _try_again(BUSY, "A newer order overtook this one; nothing was changed.", 1)


@problem_of.register
def _(error: BackendError) -> Problem:
    logger.error("the lock's or the stock's server failed: %s", error)
    return _try_again(
        UNAVAILABLE, "The server of the locks or of the stock doesn't answer.", RETRY_AFTER_OUTAGE
    )


@problem_of.register
def _(error: LockLost) -> Problem:
    logger.error("a lock was lost in a request: %s", error)
    return _unknown("The lock was lost while the order was being placed.")


@problem_of.register
def _(error: DatabaseUnavailable) -> Problem:
    logger.error("the database failed: %s (%s)", error, error.__cause__)
    return _try_again(UNAVAILABLE, "The database failed; nothing was ordered.", RETRY_AFTER_OUTAGE)


@problem_of.register
def _(error: OutcomeUnknown) -> Problem:
    logger.error("the outcome of an order is unknown: %s (%s)", error, error.__cause__)
    return _unknown("The connection to the database was lost while the order was being placed.")


@problem_of.register(OperationalError)
@problem_of.register(InterfaceError)
@problem_of.register(InternalError)
def _(error: DatabaseError) -> Problem:
    logger.error("the database failed: %s", error)
    chain = list(failures(error))
    if all(map(_unreachable, chain)):
        return _try_again(UNAVAILABLE, "The database can't be reached.", RETRY_AFTER_OUTAGE)
    if all(_unreachable(failure) or refused_by_server(failure) for failure in chain):
        return _try_again(
            UNAVAILABLE, "The database refused the work; nothing was changed.", RETRY_AFTER_OUTAGE
        )
    return _unknown("The connection to the database was lost.")


def _unreachable(error: Error) -> bool:
    """Return whether no connection could be opened: then nothing was asked of the database."""
    cause = error.__cause__
    # Where it was raised tells: an error of a name that leads nowhere, or of a time-out, has no other mark.
    frames = walk_tb(cause.__traceback__) if cause else ()
    return any(frame.f_code is _CONNECT for frame, _ in frames)


def _invalid(faults: Sequence[Fault]) -> Problem:
    first = faults[0]
    detail = f"{first.pointer or 'The body'} {first.detail}."
    if len(faults) > 1:
        detail += f" {len(faults) - 1} more in errors."
    return Problem(INVALID, detail, errors=[asdict(fault) for fault in faults])


def _try_again(kind: ProblemType, detail: str, seconds: float) -> Problem:
    # Retry-After is in whole seconds; rounded up, or the second try would come while the lock is still held.
    return Problem(kind, detail, headers={"Retry-After": str(max(1, math.ceil(seconds)))})


def _unknown(detail: str) -> Problem:
    return _try_again(
        OUTCOME_UNKNOWN, f"{detail} Repeat the request with the same Idempotency-Key.", RETRY_AFTER_OUTAGE
    )


# Around a view ---------------------------------------------------------------------------------------------


def json_api(*methods: str) -> Callable[[_View], _View]:
    """Make a view of JSON: it answers `methods` only, and its errors become problems.

    It is exempt from the CSRF token because by itself it reads no cookie: a foreign page has nobody's rights
    to borrow. A view that writes insists on `application/json` besides, or on DELETE, which no form can send
    and for which a browser asks first (CORS); that question is never answered. So the shop page, `curl` and a
    load generator all call the same address in the same way, and a `CALLER` may read a session.
    """

    def decorate(view: _View) -> _View:
        # ATOMIC_REQUESTS would commit after the strategy has released its lock: the transaction is its own.
        @transaction.non_atomic_requests
        @csrf_exempt
        @wraps(view)
        def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            try:
                if request.method not in methods:
                    raise _wrong_method(request, methods)
                response = view(request, *args, **kwargs)
            except Exception as error:
                response = respond(_as_seen_by(request, problem_of(error)))
            response.headers["Cache-Control"] = "no-store"
            return response

        return answer

    return decorate


def _wrong_method(request: HttpRequest, methods: Sequence[str]) -> Problem:
    allowed = ", ".join(methods)
    return Problem(
        METHOD, f"{request.method} is not allowed here; use {allowed}.", headers={"Allow": allowed}
    )


def _as_seen_by(request: HttpRequest, problem: Problem) -> Problem:
    """Don't worry a reader with an order of unknown outcome: reading places none."""
    if request.method != "POST" and problem.kind is OUTCOME_UNKNOWN:
        return Problem(UNAVAILABLE, problem.detail, headers=problem.headers)
    return problem

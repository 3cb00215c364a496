"""The one place where what went wrong becomes a problem: the table `PROBLEMS`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from traceback import walk_tb
from typing import Any, Final

import psycopg
from django.core.exceptions import SuspiciousOperation
from django.db import DatabaseError, Error, InterfaceError, InternalError, OperationalError
from django.http import HttpRequest
from ninja.errors import HttpError

import inventory
from inventory import ReservationGone, Shortage
from inventory.strategies.base import failures, was_refused
from locking import BackendError, LockLost, LockNotAcquired, StaleFencingToken
from orders.after_sale import lifecycle
from orders.http import problems
from orders.http.problems import BUSY, ORDER_STATE, OUTCOME_UNKNOWN, UNAVAILABLE, Problem, invalid, shown
from orders.selling import refusals

logger = logging.getLogger(__name__)

RETRY_AFTER_OUTAGE: Final = 5
"""Seconds: long enough for a server to be restarted, short enough for a person to wait."""

KEY: Final = "HTTP_IDEMPOTENCY_KEY"
"""The header Idempotency-Key in `request.META`, without the mapping of all headers."""

_CONNECT: Final = psycopg.Connection.connect.__code__


def problem_of(error: Exception) -> Problem:
    """Return what to answer to `error`.

    Raises:
        Exception: `error`, which isn't in the table: a bug.
    """
    if isinstance(error, Problem):
        return error
    for kind in type(error).__mro__:
        if kind in PROBLEMS:
            return PROBLEMS[kind](error)
    raise error


def as_seen_by(request: HttpRequest, problem: Problem) -> Problem:
    """Say what an unknown outcome means for this request, and what to do about it."""
    if problem.kind is not OUTCOME_UNKNOWN:
        return problem
    if request.method in ("GET", "HEAD"):
        return Problem(UNAVAILABLE, problem.detail, retry_after=RETRY_AFTER_OUTAGE)
    match = request.resolver_match
    if match is None or match.url_name not in ("checkout", "reservations"):
        advice = "Repeat the request: it takes effect once."
    elif KEY in request.META:
        advice = "Repeat the request with the same Idempotency-Key."
    else:
        advice = "Without an Idempotency-Key a repetition may be a second order; send one with each request."
    return Problem(OUTCOME_UNKNOWN, f"{problem.detail} {advice}", retry_after=RETRY_AFTER_OUTAGE)


@lru_cache(maxsize=128)  # a crowd that comes too late gets one answer
def _sold_out(shortages: tuple[Shortage, ...]) -> Problem:
    skus = ", ".join(short.sku for short in shortages)
    detail = f"Not enough of {skus}; nothing was ordered."
    return Problem(problems.SOLD_OUT, detail, shortages=[short._asdict() for short in shortages])


def _limit(error: refusals.LimitReached) -> Problem:
    members = {name: getattr(error, name) for name in ("sku", "limit", "bought", "requested")}
    detail = f"One customer may have {error.limit} of {error.sku}; nothing was ordered."
    return Problem(problems.LIMIT, detail, **members)


def _not_for_sale(error: refusals.NotForSale) -> Problem:
    detail = f"{', '.join(error.skus)} can't be ordered; nothing was ordered."
    return Problem(problems.NOT_FOR_SALE, detail, skus=list(error.skus))


def _mixed(error: refusals.MixedCurrencies) -> Problem:
    named = ", ".join(sorted(set(error.currencies.values())))
    detail = f"Prices are in {named}; nothing was ordered."
    return Problem(problems.MIXED_CURRENCIES, detail, currencies=error.currencies)


def _repriced(error: refusals.PriceChanged) -> Problem:
    (expected, agreed_in), (total, currency) = error.expected, error.total
    detail = (
        f"The order costs {total} {currency} by now, and {expected} {agreed_in or currency} were expected; "
        "nothing was ordered."
    )
    return Problem(
        problems.PRICE_CHANGED, detail, expected=str(expected), total=str(total), currency=currency
    )


def _gone(error: ReservationGone) -> Problem:
    if error.state is None:
        return Problem(problems.NOT_FOUND, "There is no reservation of this id.")
    return Problem(problems.RESERVATION_GONE, f"The reservation is {error.state}.", state=str(error.state))


def _state(kind: problems.ProblemType, detail: str) -> Callable[[lifecycle.TransitionRefused], Problem]:
    """Return what answers `detail`, with the order's state in its braces and as a member."""
    return lambda error: Problem(kind, detail.format(error.state), state=str(error.state))


def _outage(detail: str, kind: problems.ProblemType = UNAVAILABLE) -> Callable[[Exception], Problem]:
    """Return what logs the error and answers `detail`: hosts and statements are for the log alone."""

    def answer(error: Exception) -> Problem:
        logger.error("%s %s (%s)", detail, error, error.__cause__)
        return Problem(kind, detail, retry_after=RETRY_AFTER_OUTAGE)

    return answer


def _database(error: DatabaseError) -> Problem:
    """Answer an error of reading, which may come before a change or behind its commit."""
    chain = list(failures(error, Error))
    if all(map(_unreachable, chain)):
        return _outage("The database can't be reached.")(error)
    if all(_unreachable(failure) or was_refused(failure) for failure in chain):
        return _outage("The database refused the work; nothing was changed.")(error)
    return _outage("The connection to the database was lost.", OUTCOME_UNKNOWN)(error)


def _unreachable(error: Error) -> bool:
    """Return whether no connection could be opened: then nothing was asked of the database."""
    cause = error.__cause__
    # Where it was raised decides: an error of an unknown name, or of a time-out, has no other mark.
    frames = walk_tb(cause.__traceback__) if cause else ()
    return any(frame.f_code is _CONNECT for frame, _ in frames)


PROBLEMS: Final[dict[type, Callable[[Any], Problem]]] = {
    inventory.InvalidLines: lambda error: invalid(("/lines", str(error))),
    inventory.UnknownSku: lambda error: invalid(
        *(("/lines", f"{shown(sku)}: no product has this SKU") for sku in error.skus),
        kind=problems.UNKNOWN_PRODUCT,
    ),
    inventory.SoldOut: lambda error: _sold_out(error.shortages),
    refusals.LimitReached: _limit,
    refusals.NotForSale: _not_for_sale,
    refusals.MixedCurrencies: _mixed,
    refusals.PriceChanged: _repriced,
    inventory.Busy: lambda error: Problem(BUSY, retry_after=error.retry_after),
    ReservationGone: _gone,
    lifecycle.OrderUnknown: lambda error: Problem(problems.NOT_FOUND, "There is no order of this id."),
    lifecycle.TransitionRefused: _state(ORDER_STATE, "The order is {}."),
    lifecycle.AlreadyShipped: _state(
        ORDER_STATE, "Units of this order were shipped, so it can't be cancelled; send them back instead."
    ),
    lifecycle.PaymentTooLate: _state(problems.TOO_LATE, "The order is {}; nothing was sold."),
    # The holder and the key stay in the log: another customer's purchase is confidential.
    LockNotAcquired: lambda error: Problem(BUSY, retry_after=error.retry_after or 1),
    StaleFencingToken: lambda error: Problem(
        BUSY, "A newer order overtook this one; nothing was changed.", retry_after=1
    ),
    BackendError: _outage("The server of the locks or of the stock doesn't answer."),
    LockLost: _outage("The lock was lost while the order was being placed.", OUTCOME_UNKNOWN),
    inventory.DatabaseUnavailable: _outage("The database failed; nothing was ordered."),
    inventory.OutcomeUnknown: _outage(
        "The connection to the database was lost while the order was being placed.", OUTCOME_UNKNOWN
    ),
    OperationalError: _database,
    InterfaceError: _database,
    InternalError: _database,
    # Django doesn't read it: too many parameters in its address.
    SuspiciousOperation: lambda error: invalid(("", f"can't be read: {error}")),
    # django-ninja hides why a body can't be read behind an error of its own.
    HttpError: lambda error: problem_of(error.__cause__) if error.__cause__ else invalid(("", str(error))),
}
"""By the class of an error, or of its nearest base: what it answers."""

"""`Idempotency-Key`: a client that got no answer asks again with the same key, and gets the first answer.

Nothing is looked up before the sale. The key is written in the order's own transaction under a unique index,
so a repetition is found where it can't be missed; and before a refusal is answered the key is looked up,
because what is sold out now may have been sold to this very request.

A refusal is kept only when the database itself is short, units of unfinished sales counted as its own. Units
that are missing in a copy may be held by an earlier request of the same key, which may still fail.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError
from django.db.models import Q
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse

from inventory.domain import Busy, LimitReached, SoldOut
from inventory.progress import CONNECTION_ERRORS, DatabaseUnavailable, OutcomeUnknown
from inventory.reservations import ReservationGone, Reserved
from inventory.segments import is_short
from orders.http.errors import KEY, problem_of
from orders.http.problems import INVALID, KEY_IN_PROGRESS, KEY_MISSING, KEY_REUSED, Problem
from orders.http.responses import JSON, PROBLEM_JSON, address_of, json_answer
from orders.models import IdempotencyKey
from orders.order_writer import CREATED, ClientKey, RepeatedKey

HEADER = "Idempotency-Key"
_FINAL = (SoldOut, LimitReached, ReservationGone)
"""Refusals that are kept: the same key never gets another answer. *Busy* and an outage are asked again."""

KEY_RULE = "1 to 255 visible ASCII characters"
KEY_PATTERN = r"^[!-~]{1,255}$"
"""As it is published; quotes around the key are taken off before."""
_KEY = re.compile(KEY_PATTERN.replace("$", r"\Z"))
_lock = threading.Lock()
_in_flight: set[tuple[str, str]] = set()


def client_key(request: HttpRequest, scope: str) -> ClientKey | None:
    """Return the request's key, or None where it has none and needs none.

    Args:
        request: its body is part of the fingerprint, so another body under the same key is found out.
        scope: the authenticated caller whose key it is: two callers may choose the same one.

    Raises:
        Problem: it is missing where `settings.IDEMPOTENCY_KEY_REQUIRED`, or can't be one.
    """
    given = request.META.get(KEY)
    if given is None:
        if settings.IDEMPOTENCY_KEY_REQUIRED:
            raise Problem(KEY_MISSING)
        return None
    key = given[1:-1] if len(given) > 1 and given[0] == given[-1] == '"' else given
    if not _KEY.match(key):
        raise Problem(INVALID, f"{HEADER} must be {KEY_RULE}; send a UUID.", errors=[])
    fingerprint = hashlib.sha256(request.path.encode() + b"\0" + request.body).hexdigest()
    return ClientKey(scope, key, fingerprint)


def write_reservation_key(key: ClientKey, made: Reserved, body: Mapping[str, Any]) -> None:
    """Keep the answer of a reservation in its transaction.

    Raises:
        RepeatedKey: the key has an answer already; the transaction must be rolled back.
    """
    try:
        IdempotencyKey.objects.create(**asdict(key), status=CREATED, body=body, basket=made.basket)
    except IntegrityError as error:
        raise RepeatedKey(key.scope, key.key) from error


def once(key: ClientKey | None, work: Callable[[], HttpResponse]) -> HttpResponse:
    """Return the answer of `work`, or the one that the key has already.

    Args:
        key: the request's; without one `work` is simply done.
        work: places the order or makes the reservation with the key, and returns the answer.

    Raises:
        Problem: the key is in progress, or was used for another request. And whatever `work` raises.
    """
    if key is None:
        try:
            return work()
        except SoldOut as error:
            if error.promised:  # it isn't known yet whether the database itself is short
                _require_short(error)
            raise
    with _alone(key):
        try:
            return work()
        except Exception as error:
            return _settled(key, error)


@contextmanager
def _alone(key: ClientKey) -> Iterator[None]:
    """Refuse a key that this process is at work on. Requests in other processes wait at the unique index."""
    name = (key.scope, key.key)
    with _lock:
        if name in _in_flight:
            raise Problem(KEY_IN_PROGRESS, retry_after=1)
        _in_flight.add(name)
    try:
        yield
    finally:
        with _lock:
            _in_flight.discard(name)


def _answered(key: ClientKey) -> HttpResponse | None:
    """Return the stored answer of the key, if it has one.

    Raises:
        Problem: it belongs to another request.
    """
    row = IdempotencyKey.objects.filter(scope=key.scope, key=key.key).first()
    if row is None:
        return None
    if row.fingerprint != key.fingerprint:
        raise Problem(KEY_REUSED)
    media = JSON if row.status == CREATED else PROBLEM_JSON
    headers = {"Idempotency-Replayed": "true"}
    if row.order_id:
        headers["Location"] = address_of("order", row.order_id)
    elif row.basket:
        headers["Location"] = address_of("reservation", row.basket)
    return json_answer(row.body, status=row.status, media=media, headers=headers)


def _settled(key: ClientKey, error: Exception) -> HttpResponse:
    """Return the key's answer, or keep a final refusal; raise what can be neither.

    Raises:
        OutcomeUnknown: the key has an answer, which can't be read now.
        DatabaseUnavailable: a refusal can't be kept.
        Exception: `error`. A database that can't be asked says nothing of the sale; what ended it does.
    """
    try:
        return _answered(key) or _kept(key, error)
    except CONNECTION_ERRORS as outage:
        if isinstance(error, RepeatedKey):
            raise OutcomeUnknown("the answer of the first request can't be read now") from outage
        if isinstance(error, _FINAL):
            raise DatabaseUnavailable("a refusal could not be kept; nothing was ordered") from outage
        if error is outage:
            raise
        raise error from error.__cause__


def _kept(key: ClientKey, error: Exception) -> HttpResponse:
    """Raise `error`, a final refusal stored first. If another request was faster, return its answer."""
    if not isinstance(error, _FINAL):
        raise error
    if isinstance(error, SoldOut):
        _require_short(error)
    problem = problem_of(error)
    try:
        IdempotencyKey.objects.create(**asdict(key), status=problem.kind.status, body=problem.document())
    except IntegrityError:
        if faster := _answered(key):
            return faster
    raise error


def _require_short(error: SoldOut) -> None:
    """Refuse with *busy* what only unfinished sales hold: their units may come back.

    Raises:
        Busy: the database itself has enough.
    """
    if not is_short(error.shortages):
        raise Busy("the missing units are held by sales that are not finished") from error


def forget_old_keys() -> int:
    """Delete the keys that no client may repeat any more, those of refusals sooner; returns how many."""
    kept, refused = (
        timedelta(seconds=seconds)
        for seconds in (settings.IDEMPOTENCY_KEPT, settings.IDEMPOTENCY_REFUSALS_KEPT)
    )
    old = Q(created_at__lt=Now() - kept) | Q(created_at__lt=Now() - refused, order=None, basket=None)
    return IdempotencyKey.objects.filter(old).delete()[0]

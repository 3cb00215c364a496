"""Who sends a request: the one hook through which the embedding shop says so.

`settings.CALLER` names a function of the request that returns a `Caller`. Its `scope` is whose idempotency
keys, orders and reservations these are; nothing in a request's body can change it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from django.conf import settings
from django.http import HttpRequest
from django.utils.module_loading import import_string

from inventory.reservations import ReservationGone, Reserved
from orders.http.problems import FORBIDDEN, UNAUTHORIZED, Problem
from orders.lifecycle import OrderUnknown
from orders.models import Order

PAY: Final = "pay"
"""The right to note that an order is paid."""
ORDERS: Final = "orders"
"""The right to see, list, change and buy every order and reservation, whatever its scope."""
RIGHTS: Final = frozenset({PAY, ORDERS})

MAX_NAME: Final = 100


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated sender of a request.

    Args:
        scope: names it, such as `user:42`; empty: an anonymous caller.
        rights: of `RIGHTS`.
        customer: who buys, where the shop knows that; then a body can't name another one.

    Raises:
        ValueError: scope or customer has more than 100 characters, or a right is unknown.
    """

    scope: str = ""
    rights: frozenset[str] = field(default_factory=frozenset)
    customer: str = ""

    def __post_init__(self) -> None:
        for kind, name in (("scope", self.scope), ("customer", self.customer)):
            if len(name) > MAX_NAME:
                what = f"{kind} {name[:20]!r}…: has {len(name)} characters"
                raise ValueError(f"{what}, at most {MAX_NAME} are kept; use a shorter name")
        if unknown := self.rights - RIGHTS:
            raise ValueError(f"rights {sorted(unknown)}: are unknown; known are {sorted(RIGHTS)}")

    def require(self, right: str, detail: str = "") -> None:
        """Refuse a caller without `right`, with `detail` or else that of a payment.

        Raises:
            Problem: 403.
        """
        if right not in self.rights:
            raise Problem(FORBIDDEN, detail)

    def customer_of(self, named: str) -> str:
        """Return who buys: the caller's own customer, or the one that the body has `named`.

        Raises:
            Problem: 403: the body names another customer.
        """
        if self.customer and named not in ("", self.customer):
            raise Problem(FORBIDDEN, "This caller buys for itself alone; leave customer out.")
        return self.customer or named

    def require_order(self, order: Order) -> None:
        """Refuse an order of another scope as if it did not exist; one without a scope is found by its id.

        Raises:
            OrderUnknown: it is of another scope.
        """
        if not self._may_use(order.scope):
            raise OrderUnknown(order.pk)

    def require_reservation(self, made: Reserved) -> None:
        """Refuse a reservation of another scope as if there were none; without a scope it is found by its id.

        Raises:
            ReservationGone: it is of another scope.
        """
        if not self._may_use(made.scope):
            raise ReservationGone(made.basket)

    def _may_use(self, scope: str) -> bool:
        return scope in ("", self.scope) or ORDERS in self.rights


_ANONYMOUS: Final = Caller()
_TRUSTED: Final = Caller(rights=RIGHTS)


def caller_of(request: HttpRequest) -> Caller:
    """Return who sends the request, as `settings.CALLER` says.

    Raises:
        Problem: the hook refuses the request; `by_api_key` does so with 401.
    """
    return _hook(settings.CALLER)(request)


def anonymous(request: HttpRequest) -> Caller:
    """Return a caller without a scope; with `settings.OPEN_DEMO` it has every right."""
    return _TRUSTED if settings.OPEN_DEMO else _ANONYMOUS


def by_api_key(request: HttpRequest) -> Caller:
    """Return whose key is in `Authorization: Bearer KEY`; `settings.API_KEYS` has the SHA-256 of each key.

    Raises:
        Problem: 401: there is no key, or an unknown one.
    """
    kind, _, key = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    if kind.lower() != "bearer" or not key:
        raise _unauthorized()
    # Only the digest is looked up: how long that takes tells nothing about any key.
    found = settings.API_KEYS.get(hashlib.sha256(key.strip().encode()).hexdigest())
    if found is None:
        raise _unauthorized("The API key is unknown; ask the shop for one.")
    scope, rights = found
    return Caller(scope, frozenset(rights))


def _unauthorized(detail: str = "") -> Problem:
    return Problem(UNAUTHORIZED, detail, headers={"WWW-Authenticate": "Bearer"})


@lru_cache(maxsize=8)
def _hook(path: str) -> Callable[[HttpRequest], Caller]:
    hook: Callable[[HttpRequest], Caller] = import_string(path)
    return hook

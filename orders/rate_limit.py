"""How often one buyer may ask for stock: `CHECKOUT_RATE` requests per minute, counted by `limits`.

The minute begins with the first request and is measured by the server that counts, not by the workers'
clocks: that is the library's fixed window. Its other windows compare dates of the workers.
"""

from __future__ import annotations

import logging
import math
import ssl
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from django.conf import settings
from django.http import HttpRequest
from limits import RateLimitItem, RateLimitItemPerMinute
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter

from orders.problems import TOO_MANY, Problem

logger = logging.getLogger(__name__)

PREFIX: Final = "holdfast:rate"
_TIMEOUTS: Final[dict[str, Any]] = {"socket_timeout": 1, "socket_connect_timeout": 1}


def limit_address(request: HttpRequest) -> None:
    """Count a request by its address, before its body is read, and refuse one too many.

    A client names its customer itself: without this it would name another one each time.

    Raises:
        Problem: there were `settings.CHECKOUT_RATE_PER_ADDRESS` in this minute already.
    """
    _limit(f"address:{request.META.get('REMOTE_ADDR', '')}", settings.CHECKOUT_RATE_PER_ADDRESS)


def limit_customer(request: HttpRequest, customer: str) -> None:
    """Count a request of one customer at one address, and refuse one too many.

    Args:
        request: its address counts too, so that nobody uses up what another customer may ask.
        customer: who asks; anonymous clients are counted by their address alone.

    Raises:
        Problem: there were `settings.CHECKOUT_RATE` in this minute already.
    """
    who = f"{request.META.get('REMOTE_ADDR', '')}:{quote(customer, safe='')}"
    _limit(f"customer:{who}", settings.CHECKOUT_RATE)


def _limit(who: str, most: int) -> None:
    if not most:
        return
    rate = RateLimitItemPerMinute(most)
    if not _counted(rate, who):
        raise Problem(
            TOO_MANY,
            f"More than {most} requests in a minute; nothing was done.",
            headers={"Retry-After": str(_seconds_left(rate, who))},
        )


def _counted(rate: RateLimitItem, who: str) -> bool:
    """Count one more; False: one too many. A shop whose counter is down goes on selling."""
    try:
        return limiter().hit(rate, who)
    except Exception as error:  # each storage has errors of its own
        logger.warning("a request couldn't be counted, and was let through: %s", error)
        return True


def _seconds_left(rate: RateLimitItem, who: str) -> int:
    """Return the seconds until the window ends, at most a whole one."""
    try:
        ends = limiter().get_window_stats(rate, who).reset_time
    except Exception:  # it was up a moment ago
        return rate.get_expiry()
    left = ends - time.time()  # noqa: TID251  the library has added this clock to what the server said
    return max(1, min(math.ceil(left), rate.get_expiry()))


def limiter() -> FixedWindowRateLimiter:
    """Return the counter of `settings.CHECKOUT_RATE_STORAGE`."""
    return _limiter(settings.CHECKOUT_RATE_STORAGE)


_OF_A_LOGIN: Final = ("username", "password", "ssl_")


def _is_yes(text: str) -> bool:
    return text.upper() not in ("0", "F", "FALSE", "N", "NO")


def _verify_flags(text: str) -> list[ssl.VerifyFlags]:
    return [ssl.VerifyFlags[name.strip()] for name in text.strip("[]").split(",")]


_NO_TEXT: Final[Mapping[str, Callable[[str], Any]]] = {
    "ssl_check_hostname": _is_yes,
    "ssl_include_verify_flags": _verify_flags,
    "ssl_exclude_verify_flags": _verify_flags,
}


@lru_cache(maxsize=8)
def _limiter(address: str) -> FixedWindowRateLimiter:
    is_redis = address.startswith(("redis", "valkey"))
    options = {"key_prefix": PREFIX, **_TIMEOUTS, **_login_of_cluster(address)} if is_redis else {}
    return FixedWindowRateLimiter(storage_from_string(address, **options))


def _login_of_cluster(address: str) -> dict[str, Any]:
    """Return login and TLS as redis-py reads them: of a cluster `limits` reads none of the options."""
    if "+cluster://" not in address:
        return {}
    parts = urlsplit(address)
    options = dict(parse_qsl(parts.query))
    login = {"username": unquote(parts.username or ""), "password": unquote(parts.password or "")} | options
    named = {name: value for name, value in login.items() if value and name.startswith(_OF_A_LOGIN)}
    read = {name: _NO_TEXT.get(name, str)(value) for name, value in named.items()}
    return {**read, "ssl": options.get("ssl") == "true"}

"""How often one buyer may ask for stock: `CHECKOUT_RATE` requests per minute, counted by `limits`.

The minute begins with the first request and is measured by the server that counts, not by the workers'
clocks: that is the library's fixed window. Its other windows compare dates of the workers. Every counted
answer says what is left of it (draft-ietf-httpapi-ratelimit-headers).
"""

from __future__ import annotations

import logging
import math
import re
import ssl
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from limits import RateLimitItemPerMinute
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter

from orders.http.problems import TOO_MANY, Problem

logger = logging.getLogger(__name__)

PREFIX: Final = "holdfast:rate"
_TIMEOUTS: Final[dict[str, Any]] = {"socket_timeout": 1, "socket_connect_timeout": 1}


def limit_address(request: HttpRequest) -> None:
    """Count a request by its address, before its body is read, and refuse one too many.

    A client names its customer itself: without this it would name another one each time.

    Raises:
        Problem: there were `settings.CHECKOUT_RATE_PER_ADDRESS` in this minute already.
    """
    if settings.CHECKOUT_RATE_PER_ADDRESS:
        _limit(request, "address", client_address(request), settings.CHECKOUT_RATE_PER_ADDRESS)


def limit_customer(request: HttpRequest, scope: str, customer: str) -> None:
    """Count a request of one customer, and refuse one too many.

    Args:
        scope: the authenticated caller; empty: the client's address takes its place. So no caller uses
            up what another caller's customer of the same name may ask.
        customer: who asks; empty: all requests of the caller without one are counted together.

    Raises:
        Problem: there were `settings.CHECKOUT_RATE` in this minute already.
    """
    if settings.CHECKOUT_RATE:
        whose = quote(scope, safe="") or client_address(request)
        _limit(request, "customer", f"{whose}:{quote(customer, safe='')}", settings.CHECKOUT_RATE)


def _limit(request: HttpRequest, by: str, who: str, most: int) -> None:
    rate = RateLimitItemPerMinute(most)
    try:
        passes = limiter().hit(rate, by, who)
        ends, left = limiter().get_window_stats(rate, by, who)
    except Exception as error:  # each storage has errors of its own; a shop whose counter is down goes on
        logger.warning("a request couldn't be counted, and was let through: %s", error)
        return
    # The library has added the worker's clock to what the server said.
    seconds = max(1, min(math.ceil(ends - time.time()), rate.get_expiry()))  # noqa: TID251
    said = request.META.setdefault(_RATES, [])
    said.append((f'"{by}";q={most};w={rate.get_expiry()}', f'"{by}";r={left};t={seconds}'))
    if not passes:
        detail = f"More than {most} requests in a minute; nothing was done."
        raise Problem(TOO_MANY, detail, retry_after=seconds)


_RATES: Final = "holdfast.rates"


def write_rates(request: HttpRequest, response: HttpResponse) -> None:
    """Say in the answer what is left of the limits by which the request was counted."""
    if said := request.META.get(_RATES):
        policies, states = zip(*said, strict=True)
        response.headers["RateLimit-Policy"] = ", ".join(policies)
        response.headers["RateLimit"] = ", ".join(states)


def client_address(request: HttpRequest) -> str:
    """Return the client's address: the last in X-Forwarded-For that no trusted proxy has.

    Without `settings.TRUSTED_PROXIES` the header counts for nothing, since any client may send it.
    """
    address = str(request.META.get("REMOTE_ADDR", ""))
    proxies = trusted_proxies(tuple(settings.TRUSTED_PROXIES))
    if not proxies:
        return address
    hops = request.META.get("HTTP_X_FORWARDED_FOR", "").split(",")
    while hops and _is_in(proxies, address):
        hop = _PORT.sub("", hops.pop().strip()).strip("[]")
        try:
            address = str(ip_address(hop))
        except ValueError:  # not an address: it is the proxy's that is known last
            break
    return address


_PORT: Final = re.compile(r"(?<=[\].\d]):\d+$")


@lru_cache(maxsize=8)
def trusted_proxies(networks: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    """Return the networks.

    Raises:
        ValueError: one of them can't be read.
    """
    return tuple(ip_network(network) for network in networks)


def _is_in(networks: tuple[IPv4Network | IPv6Network, ...], address: str) -> bool:
    try:
        return any(ip_address(address) in network for network in networks)
    except ValueError:  # a Unix socket has none
        return False


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

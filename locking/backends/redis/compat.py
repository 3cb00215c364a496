"""What differs between versions of redis-py: one way to read a reply within a time limit, from 5.2 on."""

from __future__ import annotations

import inspect
import re
from typing import Any, Final

import redis
from django.core.exceptions import ImproperlyConfigured
from redis.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

TAKES_TIMEOUT: Final = "timeout" in inspect.signature(AbstractConnection.read_response).parameters
"""Since redis-py 8 `read_response` takes the limit itself."""

OLDEST: Final = (5, 2, 1)
"""The oldest redis-py that the contract passed on."""


def require_supported_client(version: str = redis.__version__) -> None:
    """Refuse a redis-py that pip could not refuse, because it was installed without the extra.

    Raises:
        ImproperlyConfigured: it is older than any that was tried.
    """
    found = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    if found < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise ImproperlyConfigured(
            f"redis-py {version} is installed, and locks need {needed} or newer:"
            f" pip install 'redis>={needed}'"
        )


def read_within(
    connection: AbstractConnection,
    timeout: float,
    *,
    push_request: bool = False,
    disconnect_on_error: bool = True,
) -> Any:
    """Return the next reply or push message, undecoded.

    Args:
        connection: an open connection.
        timeout: seconds to wait for it.
        push_request: also return push messages of RESP3.
        disconnect_on_error: close the connection when no reply came.

    Raises:
        redis.TimeoutError: nothing came in time. redis.ConnectionError: the connection is closed.
    """
    options: dict[str, Any] = {"push_request": push_request, "disconnect_on_error": disconnect_on_error}
    if TAKES_TIMEOUT:
        return connection.read_response(disable_decoding=True, timeout=timeout, **options)
    _wait_for_data(connection, timeout, disconnect_on_error)
    return connection.read_response(disable_decoding=True, **options)


def _wait_for_data(connection: Any, timeout: float, disconnect_on_error: bool) -> None:
    if connection._sock is None:  # `can_read` would connect again, without what the caller sent before
        raise RedisConnectionError("the connection is closed")
    if not connection.can_read(timeout):
        if disconnect_on_error:
            connection.disconnect()
        raise RedisTimeoutError(f"no reply within {timeout:.3f} s")

"""The `LOCKING` setting: read lazily, checked once; every mistake is reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured

from locking.keys.names import OnOpenTransaction, check_on_open_transaction, check_ttl, check_wait

DEFAULT_LEASE: Final = 30.0
"""Seconds of a lease that the watchdog keeps alive where `WATCHDOG_TTL` isn't set; Redisson's default too."""

DEFAULTS: Final[dict[str, Any]] = {
    "BACKEND": "locking.backends.redis.RedisBackend",
    "CACHE": None,
    "LOCATION": None,
    "TTL": None,
    "WATCHDOG_TTL": None,
    "WAIT": 5.0,
    "MAX_WAITERS": None,
    "RETRY_AFTER": None,
    "KEY_PREFIX": None,
    "ON_CONFLICT": "auto",
    "ON_OPEN_TRANSACTION": "refuse",
    "FENCE_TIMEOUT": None,
    "OPTIONS": {},
}

LENGTHS: Final = ("TTL", "WATCHDOG_TTL", "FENCE_TIMEOUT", "RETRY_AFTER")
"""Keys whose value is seconds above 0, or None."""


@dataclass(frozen=True, slots=True)
class AliasSettings:
    """One entry of `LOCKING`, checked.

    Attributes:
        alias: its name in the setting.
        backend: dotted path of the backend's class.
        cache: alias in `CACHES` whose Redis connection is shared, or None.
        location: URL, or list of URLs, of the backend's own servers, or None.
        ttl: default seconds of a lease; None = kept alive by the watchdog.
        watchdog_ttl: seconds of a lease that the watchdog keeps alive; a killed holder's lock stays taken for
            so long. None = 30.
        wait: default seconds that `acquire` waits; None = without end.
        max_waiters: threads and tasks of one process that may wait for locks at a time; None = any number.
        retry_after: seconds in the `Retry-After` of a view that was refused a lock; None = estimated.
        key_prefix: put before every name; where the setting is None, the backend's `default_key_prefix`.
        on_conflict: what `@distributed_lock` does when the lock is busy.
        on_open_transaction: what acquiring a lock does inside an open transaction: `refuse`, `hold` it until
            the transaction has ended, or `ignore` the transaction.
        fence_timeout: seconds that the transaction of a frozen holder may block the next fenced
            one; None = as long as the lease, and at least a second.
        options: the backend's own options.
    """

    alias: str
    backend: str
    cache: str | None = None
    location: str | list[str] | None = field(default=None, repr=False)  # may have passwords in it
    ttl: float | None = None
    watchdog_ttl: float | None = None
    wait: float | None = 5.0
    max_waiters: int | None = None
    retry_after: float | None = None
    key_prefix: str = ""
    on_conflict: Any = "auto"
    on_open_transaction: OnOpenTransaction = "refuse"
    fence_timeout: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # likewise


def read_alias(alias: str, raw: Mapping[str, Any]) -> AliasSettings:
    """Return the settings of `alias`, with the defaults filled in.

    Raises:
        ImproperlyConfigured: an unknown key, or an invalid value; the message names it.
    """
    if not isinstance(raw, Mapping):
        raise ImproperlyConfigured(f"LOCKING[{alias!r}] must be a dict, not {raw!r}")
    unknown = sorted(set(raw) - set(DEFAULTS))
    if unknown:
        raise ImproperlyConfigured(
            f"LOCKING[{alias!r}] has the unknown key {unknown[0]!r}; known are {', '.join(sorted(DEFAULTS))}"
        )
    values = {**DEFAULTS, **raw}
    try:
        wait = check_wait(values["WAIT"], source="WAIT")
        on_open_transaction = check_on_open_transaction(values["ON_OPEN_TRANSACTION"], "ON_OPEN_TRANSACTION")
        ttl, watchdog_ttl, fence_timeout, retry_after = (_seconds(values, key) for key in LENGTHS)
        max_waiters = _whole(values["MAX_WAITERS"])
    except ValueError as error:
        raise ImproperlyConfigured(f"LOCKING[{alias!r}]: {error}") from None
    if not isinstance(values["OPTIONS"], Mapping):
        raise ImproperlyConfigured(f"LOCKING[{alias!r}]['OPTIONS'] must be a dict, not {values['OPTIONS']!r}")
    return AliasSettings(
        alias=alias,
        backend=values["BACKEND"],
        cache=values["CACHE"],
        location=values["LOCATION"],
        ttl=ttl,
        watchdog_ttl=watchdog_ttl,
        wait=wait,
        max_waiters=max_waiters,
        retry_after=retry_after,
        key_prefix="" if values["KEY_PREFIX"] is None else str(values["KEY_PREFIX"]),
        on_conflict=values["ON_CONFLICT"],
        on_open_transaction=on_open_transaction,
        fence_timeout=fence_timeout,
        options=dict(values["OPTIONS"]),
    )


def _seconds(values: Mapping[str, Any], key: str) -> float | None:
    return None if values[key] is None else check_ttl(values[key], source=key)


def _whole(value: object) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"MAX_WAITERS must be a whole number above 0, or None for no limit, not {value!r}")
    return value

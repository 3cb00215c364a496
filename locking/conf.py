"""The `LOCKING` setting: read lazily, checked once; every mistake is reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured

from locking.keys.names import (
    ConflictPolicy,
    OnOpenTransaction,
    balanced,
    check_on_open_transaction,
    check_policy,
    check_ttl,
    check_wait,
)

DEFAULT_LEASE: Final = 10.0
"""Seconds of a lease that the watchdog keeps alive where `WATCHDOG_TTL` isn't set: for so long the lock of a
killed process stays taken."""

LONGEST_COUNTDOWN: Final = 60.0
"""Seconds after which a Celery task whose lock is taken is tried again at the latest."""


@dataclass(frozen=True, slots=True)
class AliasSettings:
    """One entry of `LOCKING`, checked; the reference of the settings explains each.

    None means: a `ttl` that the watchdog prolongs, a `watchdog_ttl` of 10 s, a `wait` without end, any number
    of `max_waiters`, an estimated `retry_after`, a `fence_timeout` as long as the lease, a second at least.
    """

    alias: str
    backend: str = "locking.backends.redis.RedisBackend"
    cache: str | None = None
    location: str | list[str] | None = field(default=None, repr=False)  # may have passwords in it
    ttl: float | None = None
    watchdog_ttl: float | None = None
    wait: float | None = 5.0
    max_waiters: int | None = None
    retry_after: float | None = None
    key_prefix: str = ""
    on_conflict: ConflictPolicy = "auto"
    on_open_transaction: OnOpenTransaction = "refuse"
    fence_timeout: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # likewise


DEFAULTS: Final[dict[str, Any]] = {
    **{each.name.upper(): each.default for each in fields(AliasSettings) if each.name != "alias"},
    "KEY_PREFIX": None,
    "OPTIONS": {},
}


def _length(value: object, *, source: str) -> float | None:
    return None if value is None else check_ttl(value, source=source)


def _whole(value: object, *, source: str) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"{source} must be a whole number above 0, or None for no limit, not {value!r}")
    return value


def _text(value: object, *, source: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{source} must be a text, not {value!r} ({type(value).__name__})")
    return value


def _path(value: object, *, source: str) -> str:
    found = _text(value, source=source)
    if not found or "." not in found.strip("."):
        raise ValueError(
            f"{source}={value!r} must be a dotted path, such as 'locking.backends.redis.RedisBackend'"
        )
    return found


def _prefix(value: object, *, source: str) -> str:
    found = _text(value, source=source) or ""
    if not balanced(found) and found.strip("{}") != found:
        raise ValueError(f"the braces in {source}={value!r} don't pair up; leave them out or close them")
    return found


def _location(value: object, *, source: str) -> str | list[str] | None:
    """Check the type alone; a wrong value isn't shown, for it may have a password in it."""
    texts = value if isinstance(value, list | tuple) else [value]
    if value is not None and not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{source} must be a text, or a list of texts, not {type(value).__name__}")
    return value  # type: ignore[return-value]


CHECKS: Final[dict[str, Callable[..., Any]]] = {
    "BACKEND": _path,
    "CACHE": _text,
    "LOCATION": _location,
    "KEY_PREFIX": _prefix,
    "ON_CONFLICT": check_policy,
    "WAIT": check_wait,
    "ON_OPEN_TRANSACTION": check_on_open_transaction,
    **dict.fromkeys(("TTL", "WATCHDOG_TTL", "FENCE_TIMEOUT", "RETRY_AFTER"), _length),
    "MAX_WAITERS": _whole,
}
"""What a value must be; each raises ValueError for another, and names the key."""


def read_alias(alias: str, raw: Mapping[str, Any]) -> AliasSettings:
    """Return the settings of `alias`, with the defaults filled in."""
    if not isinstance(raw, Mapping):
        raise ImproperlyConfigured(f"LOCKING[{alias!r}] must be a dict, not {raw!r}")
    for unknown in raw.keys() - DEFAULTS.keys():
        guess = get_close_matches(str(unknown).upper(), DEFAULTS, n=1)
        advice = f"did you mean {guess[0]!r}?" if guess else f"known are {', '.join(sorted(DEFAULTS))}"
        raise ImproperlyConfigured(f"LOCKING[{alias!r}] has the unknown key {unknown!r}; {advice}")
    values = {**DEFAULTS, **raw}
    try:
        values |= {key: check(values[key], source=key) for key, check in CHECKS.items()}
    except ValueError as error:
        raise ImproperlyConfigured(f"LOCKING[{alias!r}]: {error}") from None
    options = values["OPTIONS"]
    if not isinstance(options, Mapping):
        raise ImproperlyConfigured(f"LOCKING[{alias!r}]['OPTIONS'] must be a dict, not {options!r}")
    if odd := [name for name in options if not isinstance(name, str)]:
        raise ImproperlyConfigured(f"LOCKING[{alias!r}]['OPTIONS'] has the key {odd[0]!r}, which is no text")
    values["OPTIONS"] = dict(options)
    return AliasSettings(alias, **{key.lower(): value for key, value in values.items()})

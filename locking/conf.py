"""The `LOCKING` setting: read lazily, checked once; every mistake is reported."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured

from locking.keys import names

DEFAULT_LEASE: Final = 10.0  # seconds without `WATCHDOG_TTL`: a killed process' lock stays taken as long
LONGEST_COUNTDOWN: Final = 60.0  # seconds until a Celery task whose lock is taken is tried again


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
    on_conflict: names.ConflictPolicy = "auto"
    on_open_transaction: names.OnOpenTransaction = "refuse"
    fence_timeout: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # likewise


DEFAULTS: Final[dict[str, Any]] = {
    **{each.name.upper(): each.default for each in fields(AliasSettings) if each.name != "alias"},
    "KEY_PREFIX": None,
    "OPTIONS": {},
}


def _length(value: object, *, source: str) -> float | None:
    return None if value is None else names.check_ttl(value, source=source)


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
    if not names.balanced(found) and found.strip("{}") != found:
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
    "ON_CONFLICT": names.check_policy,
    "WAIT": names.check_wait,
    "ON_OPEN_TRANSACTION": names.check_on_open_transaction,
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


# --- the OPTIONS of a backend, checked before they are used ------------------------------------------------


def own_options(settings: AliasSettings, **defaults: Any) -> dict[str, Any]:
    """Return the options of an alias, with the defaults of those that it leaves out."""
    for name in ("cache", "location"):
        if getattr(settings, name) is not None:
            advice = "OPTIONS['using'] names its database" if "using" in defaults else "leave it out"
            raise ImproperlyConfigured(
                f"LOCKING[{settings.alias!r}] has {name.upper()}, which {settings.backend} doesn't take;"
                f" {advice}"
            )
    return checked_options(settings, defaults)


def checked_options(settings: AliasSettings, defaults: dict[str, Any]) -> dict[str, Any]:
    """Return `OPTIONS` over their defaults; a float as default says that the option is in seconds."""
    if unknown := sorted(set(settings.options) - set(defaults)):
        raise ImproperlyConfigured(
            f"LOCKING[{settings.alias!r}]['OPTIONS'] has {unknown[0]!r}, which {settings.backend} doesn't"
            f" know; it knows {', '.join(sorted(defaults)) or 'none'}"
        )
    for name, default in defaults.items():
        if isinstance(default, float):
            own_number(settings, settings.options.get(name, default), name)
    return {**defaults, **settings.options}


def own_pair(settings: AliasSettings, first: str, second: str) -> bool:
    """Return whether two options are given; raise ImproperlyConfigured when only one of them is."""
    for given, missing in ((first, second), (second, first)):
        if settings.options.get(given) is not None and settings.options.get(missing) is None:
            raise misplaced(settings, given, f"needs {missing!r} beside it")
    return settings.options.get(first) is not None


def own_login(settings: AliasSettings) -> tuple[str, str] | None:
    """Return user and password, where they are given; a wrong one isn't shown, for it may be a password."""
    if not own_pair(settings, "user", "password"):
        return None
    for name in ("user", "password"):
        if not isinstance(value := settings.options[name], str) or not value:
            raise misplaced(settings, name, f"must be a non-empty text, not {type(value).__name__}")
    return settings.options["user"], settings.options["password"]


def own_files(settings: AliasSettings, *options: str) -> dict[str, str]:
    """Return those of these options that are given: paths of files that this process may read."""
    files = {name: settings.options[name] for name in options if settings.options.get(name) is not None}
    for name, path in files.items():
        is_path = isinstance(path, str | os.PathLike)
        if not (is_path and os.path.isfile(path) and os.access(path, os.R_OK)):
            raise misplaced(settings, name, f"must be a file that this process can read, not {str(path)!r}")
    return {name: os.fspath(path) for name, path in files.items()}


def misplaced(settings: AliasSettings, name: str, why: str) -> ImproperlyConfigured:
    """Return the error for an invalid option."""
    return ImproperlyConfigured(f"LOCKING[{settings.alias!r}]['OPTIONS'][{name!r}] {why}")


def own_count(settings: AliasSettings, value: object, name: str) -> int:
    """Return an option that is a whole number, 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise misplaced(settings, name, f"must be a whole number, 1 or more, not {value!r}")
    return value


def own_number(settings: AliasSettings, value: object, name: str) -> float:
    """Return an option that is a number of seconds, above 0 and below an hour."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 3600:
        raise misplaced(settings, name, f"must be seconds above 0 (and below an hour), not {value!r}")
    return float(value)

"""A backend's own `OPTIONS`, checked before they are used."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from locking.conf import AliasSettings


def own_options(settings: AliasSettings, **defaults: Any) -> dict[str, Any]:
    """Return the options of an alias, with the defaults of those that it leaves out.

    Raises:
        ImproperlyConfigured: an option that the backend doesn't have, a number that isn't one above 0, or
            an address for a backend that has none.
    """
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
    refuse_unknown(settings, defaults)
    for name, default in defaults.items():
        if isinstance(default, float):
            own_number(settings, settings.options.get(name, default), name)
    return {**defaults, **settings.options}


def refuse_unknown(settings: AliasSettings, known: Collection[str]) -> None:
    """Raise ImproperlyConfigured for an option that the backend doesn't have."""
    unknown = sorted(set(settings.options) - set(known))
    if unknown:
        raise ImproperlyConfigured(
            f"LOCKING[{settings.alias!r}]['OPTIONS'] has {unknown[0]!r}, which {settings.backend} doesn't"
            f" know; it knows {', '.join(sorted(known)) or 'none'}"
        )


def own_pair(settings: AliasSettings, first: str, second: str) -> None:
    """Raise ImproperlyConfigured when only one of two options is given."""
    for given, missing in ((first, second), (second, first)):
        if settings.options.get(given) is not None and settings.options.get(missing) is None:
            raise misplaced(settings, given, f"needs {missing!r} beside it")


def own_text(settings: AliasSettings, name: str) -> str:
    """Return an option that is a text; a wrong one isn't shown, for it may be a password."""
    value = settings.options.get(name)
    if not isinstance(value, str) or not value:
        raise misplaced(settings, name, f"must be a non-empty text, not {type(value).__name__}")
    return value


def readable_file(settings: AliasSettings, name: str) -> str:
    """Return an option that is the path of a file, if this process may read it."""
    path = settings.options[name]
    if not isinstance(path, str | os.PathLike) or not os.path.isfile(path) or not os.access(path, os.R_OK):
        raise misplaced(settings, name, f"must be a file that this process can read, not {str(path)!r}")
    return os.fspath(path)


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

"""A backend's own `OPTIONS`, checked before they are used."""

from __future__ import annotations

import os
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from locking.conf import AliasSettings


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


def own_files(settings: AliasSettings, *names: str) -> dict[str, str]:
    """Return those of these options that are given: paths of files that this process may read."""
    files = {name: settings.options[name] for name in names if settings.options.get(name) is not None}
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

"""A backend's own `OPTIONS`, checked before they are used."""

from __future__ import annotations

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
            raise ImproperlyConfigured(
                f"LOCKING[{settings.alias!r}] has {name.upper()}, which {settings.backend} doesn't take;"
                " OPTIONS['using'] names its database"
            )
    return checked_options(settings, defaults)


def checked_options(settings: AliasSettings, defaults: dict[str, Any]) -> dict[str, Any]:
    """Return `OPTIONS` over their defaults; a float as default says that the option is in seconds."""
    unknown = sorted(set(settings.options) - set(defaults))
    if unknown:
        raise ImproperlyConfigured(
            f"LOCKING[{settings.alias!r}]['OPTIONS'] has {unknown[0]!r}, which {settings.backend} doesn't"
            f" know; it knows {', '.join(sorted(defaults))}"
        )
    for name, default in defaults.items():
        if isinstance(default, float):
            own_number(settings, settings.options.get(name, default), name)
    return {**defaults, **settings.options}


def own_number(settings: AliasSettings, value: object, name: str) -> float:
    """Return an option that is a number of seconds, above 0 and below an hour."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 3600:
        raise ImproperlyConfigured(
            f"LOCKING[{settings.alias!r}]['OPTIONS'][{name!r}] must be seconds above 0 (and below an hour),"
            f" not {value!r}"
        )
    return float(value)

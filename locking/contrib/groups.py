"""Which group of names a lock belongs to, for labels, which must not grow with the number of names.

The first that is known: the template that the lock was taken with, the group that the setting's function
gives, or else the name with everything that looks like an id taken out.

    LOCKING_METRICS = {
        "GROUP": "shop.locks.group_of",     # (name) -> str | None, or its dotted path
        "MOST_GROUPS": 100,                 # of one process; further ones are counted as "other"
        "BUCKETS": [0.001, 0.01, 0.1, 1],   # seconds; upper limits of the histograms
    }
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

SETTING: Final = "LOCKING_METRICS"
OTHER: Final = "other"

DEFAULTS: Final[dict[str, Any]] = {
    "GROUP": None,
    "MOST_GROUPS": 100,
    "BUCKETS": [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0],
}

UUID: Final = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)
HASH: Final = re.compile(r"(?<![0-9a-z])(?=[a-f]*[0-9])[0-9a-f]{16,}(?![0-9a-z])", re.IGNORECASE)
DIGITS: Final = re.compile(r"[0-9]+")


def read_setting() -> dict[str, Any]:
    """Return `LOCKING_METRICS` with the defaults filled in; ImproperlyConfigured names what can't be."""
    raw = getattr(settings, SETTING, {})
    if not isinstance(raw, Mapping):
        raise ImproperlyConfigured(f"{SETTING} must be a dict, not {raw!r}")
    if unknown := sorted(set(raw) - set(DEFAULTS)):
        known = ", ".join(DEFAULTS)
        raise ImproperlyConfigured(f"{SETTING} has the unknown key {unknown[0]!r}; known are {known}")
    group = raw.get("GROUP")
    try:
        found = import_string(group) if isinstance(group, str) else group
    except ImportError as error:
        raise ImproperlyConfigured(f"{SETTING}['GROUP'] can't be imported: {error}") from error
    if found is not None and not callable(found):
        raise ImproperlyConfigured(f"{SETTING}['GROUP'] must be a callable or its dotted path, not {group!r}")
    return {**DEFAULTS, **raw, "GROUP": found}


@lru_cache(maxsize=4096)
def without_ids(name: str) -> str:
    """Return `name` with `*` for whatever looks like an id: UUIDs, long hexadecimal texts, numbers.

    >>> without_ids("order:42:8d8ac610-566d-4ef0-9c22-186b2a5ed793")
    'order:*:*'
    """
    return DIGITS.sub("*", HASH.sub("*", UUID.sub("*", name)))[:200]


class Groups:
    """Puts names into groups, `most` of them; names beyond them are `other`."""

    def __init__(self, function: Callable[[str], str | None] | None = None, most: int = 100) -> None:
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise ImproperlyConfigured(
                f"{SETTING}['MOST_GROUPS'] must be a whole number above 0, not {most!r}"
            )
        self._function, self._most = function, most
        self._known: set[str] = set()

    def of(self, name: str, template: str | None) -> str:
        """Return the group of a lock's name."""
        group = template or (self._function and self._function(name)) or without_ids(name)
        if group in self._known:
            return group
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(group)
        return group

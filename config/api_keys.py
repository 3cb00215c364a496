"""API keys from the environment: `API_KEYS=storefront:<sha256 of the key>,warehouse:<sha256>:pay+orders`."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ENTRY = re.compile(r"(?P<scope>[^:]{1,100}):(?P<digest>[0-9a-f]{64})(?::(?P<rights>[a-z]+(?:\+[a-z]+)*))?\Z")


def keys_of_callers(entries: Iterable[str]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return scope and rights by the SHA-256 of each key.

    Raises:
        SystemExit: an entry can't be read; its number is named, not its digest.

    Example:
        >>> keys_of_callers(["storefront:" + "0" * 64 + ":pay"]) == {"0" * 64: ("storefront", ("pay",))}
        True
    """
    keys: dict[str, tuple[str, tuple[str, ...]]] = {}
    for number, entry in enumerate(entries, 1):
        found = _ENTRY.match(entry.strip())
        if found is None:
            raise SystemExit(
                f"holdfast: entry {number} of API_KEYS cannot be read; write name:<sha256 in hexadecimal>, "
                "and after another colon its rights, joined by +"
            )
        rights = tuple(found["rights"].split("+")) if found["rights"] else ()
        keys[found["digest"]] = (found["scope"], rights)
    return keys

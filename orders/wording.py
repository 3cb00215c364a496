"""How values are shown in answers."""

from __future__ import annotations

import json
from typing import Any

_KINDS: dict[type, str] = {dict: "an object", list: "an array"}


def shown(value: Any) -> str:
    """Show a value as JSON, ASCII only and cut short, and containers by their kind alone.

    Example:
        >>> shown("mug"), shown([1, 2])
        ('"mug"', 'an array')
    """
    if type(value) in _KINDS:
        return _KINDS[type(value)]
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def pointer_step(name: str | int) -> str:
    """Return one step of a JSON pointer (RFC 6901), escaped, printable and short."""
    if isinstance(name, int):
        return str(name)
    return shown(name)[1:-1].replace("~", "~0").replace("/", "~1")

"""What each buyer asked for and heard, on disk, so that it survives whatever the load test does.

One JSON object a line. `asked` is written before the request is sent, and the rest before the buyer does
anything else:

    {"asked": key, "basket": {sku: units}}
    {"answered": key, "status": 201, "order": id}   an order
    {"answered": key, "status": 409, "short": [sku]}  sold out, for good
    {"answered": key, "status": 503}                busy: nothing was ordered
    {"unknown": key, "why": text}                   no answer, or one that leaves the outcome unknown
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class Journal:
    """An open journal, written by the threads of one process.

    Args:
        path: the file, created if need be; a line is appended in one write, so threads don't mix.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._quick = os.open(path, flags, 0o644)
        self._durable = os.open(path, flags | os.O_DSYNC, 0o644)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._quick)
        os.close(self._durable)

    def asked(self, key: str, basket: dict[str, int]) -> None:
        """Write down a request before it is sent; a line lost with the machine had no answer yet."""
        os.write(self._quick, _line({"asked": key, "basket": basket}))

    def answered(self, key: str, status: int, **facts: object) -> None:
        """Write down an answer; on disk when this returns."""
        os.write(self._durable, _line({"answered": key, "status": status, **facts}))

    def unknown(self, key: str, why: str) -> None:
        """Write down that no answer came."""
        os.write(self._quick, _line({"unknown": key, "why": why}))


def _line(facts: dict[str, object]) -> bytes:
    return json.dumps(facts).encode() + b"\n"


def verdict(status: int, data: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what an answer of the checkout tells, as `answered` takes it; None when it settles nothing."""
    kind = str(data.get("type", ""))
    if status in (200, 201):
        return {"status": 201, "order": data["id"]}
    if status == 409 and "sold-out" in kind:
        return {"status": 409, "short": [shortage["sku"] for shortage in data["shortages"]]}
    if status == 503 and kind and "unknown" not in kind:
        return {"status": 503}
    return None


@dataclass
class Story:
    """What all journals say together.

    Attributes:
        baskets: what was asked for, by key.
        orders: ids that a key was given; more than one is a double order.
        refused: SKUs that a key heard are short.
        unknown: keys whose last answer was that the outcome is unknown.
    """

    baskets: dict[str, dict[str, int]] = field(default_factory=dict)
    orders: dict[str, set[str]] = field(default_factory=dict)
    refused: dict[str, list[str]] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)


def read(paths: Iterable[Path]) -> Story:
    """Read journals; the last line of one whose writer was killed may be torn, and then was never heard."""
    story = Story()
    for path in paths:
        for line in path.read_bytes().split(b"\n")[:-1]:
            _take_in(story, json.loads(line))
    return story


def _take_in(story: Story, event: dict[str, Any]) -> None:
    if "asked" in event:
        story.baskets[event["asked"]] = event["basket"]
        story.unknown.add(event["asked"])  # until an answer settles it
        return
    if "unknown" in event:
        return
    key = event["answered"]
    if event["status"] == 201:
        story.orders.setdefault(key, set()).add(event["order"])
    elif event["status"] == 409:
        story.refused[key] = event["short"]
    story.unknown.discard(key)

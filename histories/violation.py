"""Keep the history of a lost write for its picture: `python -m histories.violation LOGS` (of --keep)."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from histories import record

FILE: Final = Path(__file__).parent / "violation.json"
AROUND: Final = 5
"""Sections that are kept beside the one whose holder wrote late."""


def lost_write(events: Sequence[record.Event]) -> list[dict[str, Any]]:
    """Return the longest section that has overwritten another one's write, and those around it.

    Raises:
        ValueError: no write was lost.
    """
    done = [event for event in events if event.facts["key"].startswith("bare") and event.outcome == "ok"]
    values = [event.facts["value"] for event in done]
    late = [event for event in done if values.count(event.facts["value"]) > 1]
    if not late:
        raise ValueError("no write without a fence was lost in these logs")
    overwrites = max(late, key=lambda event: event.back - event.call)
    before = [event for event in done if event.back < overwrites.call][-1:]
    beside = [event for event in done if overwrites.call < event.call < overwrites.back]
    after = [event for event in done if event.call > overwrites.back][:1]
    chosen = [*before, overwrites, *beside[: AROUND - 1], *after]
    return [
        {
            "client": event.facts["client"],
            "read": round((event.call - overwrites.call) / 1e9, 3),
            "committed": round((event.back - overwrites.call) / 1e9, 3),
            "value": event.facts["value"],
        }
        for event in chosen
    ]


def main(folder: Path) -> None:
    """Write the picture's history from the logs of one cell."""
    rows = lost_write(record.read(folder).events)
    lines = ",\n".join(map(json.dumps, rows))
    FILE.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

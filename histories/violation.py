"""Look into the logs of a cell, which `--keep` has kept.

python -m histories.violation lost LOGS        keep the history of a lost write for its picture
python -m histories.violation holders LOGS     print when an exclusive lock had two holders, by the fault
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from histories import record
from histories.models import Operation

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


class Hold(NamedTuple):
    """What is certain of a hold: from its grant to the last time that its holder began to look at it."""

    key: str
    begin: int
    end: int
    client: str


def two_holders(events: Iterable[record.Event]) -> list[tuple[Hold, Hold]]:
    """Return the pairs of holds of one exclusive lock that overlap, in the order of the second grant."""
    exclusive = [event for event in events if record.MODELS[event.kind] == "lock"]
    known: dict[str, list[Operation]] = defaultdict(list)
    for operation in record.holds(exclusive):
        if operation.action != "end":
            known[operation.owner].append(operation)
    holds = [
        Hold(
            event.facts["key"],
            event.back,
            max(one.call for one in known[event.facts["owner"]]),
            event.facts["client"],
        )
        for event in exclusive
        if event.facts["action"] == "acquire" and event.outcome == "ok"
    ]
    holds.sort(key=lambda hold: hold.begin)
    return [
        (first, second)
        for number, second in enumerate(holds)
        for first in holds[:number]
        if first.key == second.key and second.begin < first.end
    ]


def near(at: int, faults: Sequence[dict[str, Any]]) -> str:
    """Return when that was, by the fault before it."""
    fault = [faults[0], *(one for one in faults if one["begin"] <= at)][-1]
    begun, ended = (at - fault["begin"]) / 1e9, (at - fault["end"]) / 1e9
    when = f"{ended:.1f} s after its end" if ended > 0 else f"{begun:.1f} s after its beginning"
    return f"{when} ({fault['chosen']})"


def main(arguments: Sequence[str]) -> None:
    """Run the command of the module's docstring."""
    what, folder = arguments[0], Path(arguments[1])
    events = record.read(folder).events
    if what == "lost":
        lines = ",\n".join(map(json.dumps, lost_write(events)))
        FILE.write_text(f"[\n{lines}\n]\n")
        return
    faults = [json.loads(line) for line in (folder / "faults.jsonl").open()]
    for first, second in two_holders(events):
        print(f"{second.key}: {first.client} and {second.client}, {near(second.begin, faults)}")


if __name__ == "__main__":
    main(sys.argv[1:])

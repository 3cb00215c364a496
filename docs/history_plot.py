"""The picture of *What happened under partitions*: the recorded history of a write that was lost."""

from __future__ import annotations

import json
from pathlib import Path

from shapes import svg, words

FILE = Path(__file__).parent.parent / "histories" / "violation.json"
LEFT, WIDE, HIGH = 60, 560, 34


def violation() -> str:
    """A frozen holder's write, without a fence."""
    rows = json.loads(FILE.read_text())
    begin = min(row["read"] for row in rows)
    scale = WIDE / (max(row["committed"] for row in rows) - begin)
    late = max(rows, key=lambda row: row["committed"] - row["read"])
    shapes = [words(16, 24, "Without a fence: each bar is a section that read x and wrote x + 1", "head")]
    for number, row in enumerate(rows):
        y, x = 44 + HIGH * number, LEFT + scale * (row["read"] - begin)
        width = max(4.0, scale * (row["committed"] - row["read"]))
        kind = "bad" if row is late else "good"
        shapes.append(words(16, y + 16, row["client"]))
        shapes.append(f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="22" rx="3"/>')
        text = f"read {row['value']}, wrote {row['value'] + 1}"
        if row is late:
            shapes.append(words(x + 8, y + 15, f"{text} {row['committed']:.1f} s later: frozen", "quiet"))
        elif x + width + 150 < LEFT + WIDE + 120:
            shapes.append(words(x + width + 8, y + 15, text, "quiet"))
        else:
            shapes.append(words(x - 8, y + 15, text, "quiet", "end"))
    label = (
        f"{late['client']} reads {late['value']} and is frozen; its lease ends, and the next holder reads and"
        f" writes the same; {late['committed']:.1f} s later {late['client']} writes: one of the two is lost."
    )
    return svg(LEFT + WIDE + 130, 60 + HIGH * len(rows), label, shapes)


HISTORIES = {"history-violation.svg": violation}

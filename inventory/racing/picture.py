"""A race as a picture: time goes to the right, each buyer has a line."""

from __future__ import annotations

from html import escape
from itertools import islice

from inventory.racing.recorder import Event
from inventory.racing.result import Buyer, Race

WIDTH, MOST_LINES = 56, 8
ROW, LEFT, PLOT = 16, 90, 700


def as_text(race: Race) -> str:
    """Return the picture for a terminal: the two buyers first, R where one reads, W where one writes."""
    begin, end = _span(race)
    lines = [f"{'':10}0 ms{'':{WIDTH - 8}}{(end - begin) * 1000:.0f} ms"]
    for buyer in islice(_chosen_first(race), MOST_LINES):
        line = ["·"] * (WIDTH + 1)
        for event in _shown(buyer):
            place = round(WIDTH * (event.moment - begin) / (end - begin))
            line[place] = "W" if event.statement.writes or line[place] == "W" else "R"
        lines.append(f"buyer {buyer.number:<3} {''.join(line)} {'sold' if buyer.sold else 'refused'}")
    if len(race.buyers) > MOST_LINES:
        lines.append(f"and {len(race.buyers) - MOST_LINES} more")
    return "\n".join(lines)


def as_svg(race: Race) -> str:
    """Return the picture as one SVG: circles read, squares write, their statements are their titles."""
    begin, end = _span(race)
    chosen = {buyer.number for buyer in race.shared[:2]} if race.shared else set()
    title = str(race).split("\n", 1)[0]
    parts = [f'<text x="4" y="14" font-weight="bold">{escape(title)}</text>']
    for line, buyer in enumerate(_chosen_first(race), 2):
        y = line * ROW
        tone = "#b00020" if buyer.number in chosen else "#1b5e20" if buyer.sold else "#777"
        parts.append(f'<text x="4" y="{y + 4}" fill="{tone}">buyer {buyer.number}</text>')
        parts.append(f'<path d="M{LEFT} {y}h{PLOT}" stroke="#ddd"/>')
        parts.extend(
            _mark(event, LEFT + PLOT * (event.moment - begin) / (end - begin), y, tone)
            for event in _shown(buyer)
        )
        parts.append(f'<text x="{LEFT + PLOT + 10}" y="{y + 4}" fill="{tone}">{_end(buyer)}</text>')
    size = f'width="{LEFT + PLOT + 110}" height="{(len(race.buyers) + 3) * ROW}"'
    style = 'font-family="sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(parts)}</svg>\n'


def _mark(event: Event, x: float, y: int, tone: str) -> str:
    read = ", ".join(f"{column} = {value}" for row in event.rows[:3] for column, value in row)
    title = f"<title>{escape(event.sql[:300])}{escape(f' → {read[:300]}') if read else ''}</title>"
    if event.statement.writes:
        return f'<rect x="{x - 4:.1f}" y="{y - 4}" width="8" height="8" fill="{tone}">{title}</rect>'
    return (
        f'<circle cx="{x:.1f}" cy="{y}" r="4" fill="white" stroke="{tone}" stroke-width="2">{title}</circle>'
    )


def _end(buyer: Buyer) -> str:
    return "sold" if buyer.sold else f"<title>{escape(buyer.refusal)}</title>refused"


def _shown(buyer: Buyer) -> list[Event]:
    return [event for event in buyer.events if event.statement.reads or event.statement.writes]


def _chosen_first(race: Race) -> list[Buyer]:
    chosen = race.shared[:2] if race.shared else ()
    return [*chosen, *(buyer for buyer in race.buyers if buyer not in chosen)]


def _span(race: Race) -> tuple[float, float]:
    moments = [event.moment for buyer in race.buyers for event in _shown(buyer)] or [0.0]
    return min(moments), max(max(moments), min(moments) + 1e-6)

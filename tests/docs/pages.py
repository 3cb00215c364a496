"""The pages of the documentation, and what they are made of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests import ROOT

LIBRARY, STOCK, SHOP = (ROOT / "docs" / part for part in ("library", "inventory", "shop"))
TUTORIAL = LIBRARY / "tutorial"

PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("benchmarks/*.md"),
        ROOT / "locking" / "README.md",
    ]
)
SPOKEN = [page for page in PAGES if page.name != "CHANGELOG.md" and page.parent.name != "adr"]
"""Pages that say how things are now; the change log and the decisions say how they were."""

FENCE = re.compile(r"^( *)```(\S*)([^\n]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?!https?:)([^)\s]*)\)|!\[[^\]]*\]\((?!https?:)([^)\s]+)\)")
HEADING = re.compile(r"^#{1,4} (.+)$", re.MULTILINE)


def name_of(page: Path) -> str:
    """Return a page's path from the root of the project."""
    return str(page.relative_to(ROOT))


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: str
    language: str
    text: str

    @property
    def first_line(self) -> str:
        """Its beginning, by which lists of blocks name it."""
        return self.text.strip().partition("\n")[0][:50]

    @property
    def lines(self) -> list[str]:
        return [line.strip() for line in self.text.splitlines() if line.strip()]


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    for match in FENCE.finditer(page.read_text()):
        yield Block(name_of(page), match[2], match[4])


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks_of(page)]


def prose_of(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return FENCE.sub("", page.read_text())


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    plain = (re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", text) for text in HEADING.findall(prose_of(page)))
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in plain}


def section(page: Path, title: str) -> str:
    """Return the part of a page below a heading of the second level."""
    return page.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """Return the rows of the tables in a text, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rules = {number for number, row in enumerate(table) if set("".join(row)) <= set("-: ")}
    return [row for number, row in enumerate(table) if number not in rules and number + 1 not in rules]


def coded(text: str) -> list[str]:
    """Return what stands in backticks."""
    return re.findall(r"`([^`\n]+)`", text)

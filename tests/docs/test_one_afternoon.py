"""The page *One afternoon* names files that exist, and as many lines as it says."""

from __future__ import annotations

import re

from tests import ROOT

PAGE = (ROOT / "docs/contributing/one-afternoon.md").read_text()
ROW = re.compile(r"^\| \d+ \| `([\w/.]+)` \|", re.MULTILINE)


def lines_of(heading: str) -> int:
    """Return the lines of the files in one table; a folder counts with its Lua scripts."""
    section = PAGE.split(f"## {heading}", 1)[1].split("\n## ", 1)[0]
    paths = [ROOT / "locking" / name for name in ROW.findall(section)]
    files = [file for path in paths for file in (sorted(path.glob("*.lua")) if path.is_dir() else [path])]
    assert len(files) >= len(paths) > 5
    return sum(len(file.read_text().splitlines()) for file in files)


def test_the_first_part_is_as_long_as_it_says() -> None:
    """About 5,000 lines: a tenth more or less."""
    assert 4_500 <= lines_of("First") <= 5_500


def test_redis_is_as_long_as_it_says() -> None:
    """About 2,400 lines: a tenth more or less."""
    assert 2_160 <= lines_of("Then") <= 2_640


def test_there_are_twenty_questions_with_their_answers_folded() -> None:
    """Each question is a summary, and its answer isn't empty."""
    found = re.findall(r"<details>\n<summary>(\d+)\. [^<]+\?</summary>\n\n(.+)\n\n</details>", PAGE)
    assert [int(number) for number, _ in found] == list(range(1, 21))

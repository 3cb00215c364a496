"""The page on architecture says what the code does: its floors are the import rules, its calls are traced."""

import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from locking import distributed_lock
from tests import ROOT

LOCKING = ROOT / "locking"
PAGE = (ROOT / "docs/contributing/architecture.md").read_text()
ROW = re.compile(r"^\| \d+ \| `([^`]+)` \| `([^`]+)` \|", re.MULTILINE)

Call = tuple[str, str]


@distributed_lock(key="'architecture:'+<number>", wait=3)
def locked(number: int) -> int:
    """Hold a lock in a transaction."""
    return number


def section(title: str) -> str:
    """Return the part of the page below a heading."""
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def calls_in(text: str) -> list[Call]:
    """Return the rows of a table of calls as (file, function)."""
    return ROW.findall(text)


def named(code: CodeType) -> Call:
    """Return a function as the page names it."""
    return str(Path(code.co_filename).relative_to(LOCKING)), code.co_qualname.replace(".<locals>", "")


def frames_of(frame: FrameType | None) -> list[CodeType]:
    """Return the running functions from the wrapper of `locked` to `frame`."""
    codes: list[CodeType] = []
    while frame is not None:
        codes.insert(0, frame.f_code)
        if frame.f_code is locked.__code__:
            return codes
        frame = frame.f_back
    return []


def traced() -> list[list[CodeType]]:
    """Return what ran, outermost first, each time that one decorated call sent something to Redis."""
    found: list[list[CodeType]] = []

    def profile(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and getattr(called, "__name__", "") == "sendall":
            codes = frames_of(frame)
            if codes and Path(codes[-1].co_filename).is_relative_to(LOCKING):
                found.append(codes)

    sys.setprofile(profile)
    try:
        locked(2)
    finally:
        sys.setprofile(None)
    return found


@pytest.fixture
def ways(transactional_db: None) -> list[list[CodeType]]:
    """The way to the socket of the acquisition and of the release, connected and with the scripts loaded."""
    locked(1)
    return traced()


@pytest.mark.parametrize(("number", "title"), [(0, "There: acquire"), (1, "Back: release")])
def test_the_calls_of_the_page_are_made(ways: list[list[CodeType]], number: int, title: str) -> None:
    """A decorated call reaches the socket twice, through the functions that the page lists."""
    assert len(ways) == 2
    made = [named(code) for code in ways[number] if Path(code.co_filename).is_relative_to(LOCKING)]
    assert calls_in(section(title)) == made


@pytest.mark.parametrize(("number", "title", "most"), [(0, "There: acquire", 12), (1, "Back: release", 12)])
def test_the_page_counts_the_frames(ways: list[list[CodeType]], number: int, title: str, most: int) -> None:
    """The page says how many Python frames lie between the decorator and the socket: 12 there, 12 back.

    As many functions were entered when the verbs were generators; those that had yielded weren't counted.
    """
    printed = re.search(r"\*\*(\d+) frames\*\*", section(title))
    assert printed is not None
    assert int(printed[1]) == len(ways[number]) <= most


def test_the_floors_of_the_page_are_the_import_rules() -> None:
    """The table of floors lists the layers of pyproject.toml, from the top down."""
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(rule["layers"] for rule in rules if rule.get("containers") == ["locking"])
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", section("The floors of `locking`"), re.MULTILINE)
    assert [set(re.findall(r"\w+", row)) for row in rows] == [set(re.findall(r"\w+", row)) for row in layers]


def test_the_pictures_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python docs/draw.py` would change no picture: those of tables and data are as new as these."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    drawings = import_module("draw").drawings()
    assert [path.name for path, drawn in drawings.items() if path.read_text() != drawn] == []


def test_the_files_of_the_page_exist() -> None:
    """Every path in the table of wishes is a file of the project."""
    paths = re.findall(r"`((?:locking|inventory|orders)/[\w/]+\.\w+)`", section("Where do I change …"))
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).is_file()] == []

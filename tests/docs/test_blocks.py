"""Every block of code in the documentation is run, parsed, compared, or has a reason not to be."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import shlex
import tomllib
from typing import Any

import pytest
from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand

from tests import ROOT
from tests.docs.pages import LINK, PAGES, Block, all_blocks, anchors_of, blocks_of, name_of
from tests.docs.test_consoles import COMPARED

PYTHONS = ("python", ".venv/bin/python")
TYPED = re.compile(r"^(?:\$ )?(?:(?:\.venv/bin/)?python |manage\.py |make |(?:\.venv/bin/)?pip )")

UNCHECKED = {
    (
        "README.md",
        "locking/     the reusable app: get_lock, locked_tr",
    ): "a list of folders; test_names looks for them",
    ("docs/library/how-to/java.md", "semaphore.trySetPermits(3);"): "Java; the tests of Redisson do the same",
    (
        "docs/library/how-to/periodic.md",
        "0 3 * * * manage.py locks run --wait 0 --on-confli",
    ): "a line of crontab",
    ("docs/library/reference/backends/etcd.md", "LOCKING = {"): "needs etcd; the backend's tests start one",
    (
        "docs/library/how-to/etcd.md",
        '"LOCATION": ["https://etcd1:2379", "https://etcd2:',
    ): "a part of a setting",
    (
        "docs/library/how-to/etcd.md",
        "etcdctl user add shop && etcdctl role add locks &&",
    ): "needs etcd; the backend's tests do the same",
    (
        "docs/library/reference/backends/zookeeper.md",
        "LOCKING = {",
    ): "needs ZooKeeper; the backend's tests start one",
    (
        "docs/library/how-to/zookeeper.md",
        '"LOCATION": "zk1:2281,zk2:2281,zk3:2281/locks",',
    ): "a part of a setting",
    ("docs/library/how-to/zookeeper.md", "secureClientPort=2281"): "a file of ZooKeeper's",
    (
        "docs/library/how-to/zookeeper.md",
        "from kazoo.security import make_acl",
    ): "needs SASL on the server",
    (
        "docs/shop/explanation/lesson.md",
        "printf 'tickTime=2000\\ndataDir=/tmp/zk\\nclientPort",
    ): "starts servers that go on",
    (
        "docs/shop/explanation/lesson.md",
        "export ZOOKEEPER_HOSTS=127.0.0.1:2181/locks ETCD_E",
    ): "needs those servers",
}
"""Blocks that nothing checks, and why. This list may only become shorter."""

AT_MOST = 12

EXAMPLE = ROOT / "examples" / "bookshop" / "models.py"

BY_LANGUAGE = {
    "python": "run: test_examples",
    "py": "run where the other library is installed: test_examples",
    "{toctree}": "built: make docs",
    "{eval-rst}": "built: make docs",
    "{mermaid}": "built: make docs",
    "json": "parsed",
    "toml": "parsed",
}


def kind_of(block: Block) -> str:
    """Return by what a block is checked, or an empty text."""
    if block.language in BY_LANGUAGE:
        return BY_LANGUAGE[block.language]
    if block.page.endswith("how-to/entry-points.md") and block.text.startswith(":caption: "):
        return "run: tests.scratch"
    if block.page.startswith("docs/library/tutorial/"):
        return "followed: test_walkthrough"
    if block.page.endswith("ten-minutes.md") and block.text in EXAMPLE.read_text():
        return "the same as in the example"
    if (block.page, block.first_line) in COMPARED:
        return "compared: test_consoles"
    if block.page == "README.zh-hans.md" and block.text in {
        each.text for each in blocks_of(ROOT / "README.md")
    }:
        return "the same as in README.md"
    if block.page.endswith("how-to/acl.md"):
        return "used: test_acl"
    if block.lines and all(TYPED.match(line) for line in block.lines):
        return "command lines"
    return ""


def test_every_block_is_checked_or_has_a_reason() -> None:
    """A new block must be one that is checked; a reason that stands for no block is deleted."""
    unchecked = {(block.page, block.first_line) for block in all_blocks() if not kind_of(block)}
    assert unchecked == set(UNCHECKED)
    assert len(UNCHECKED) <= AT_MOST


@pytest.mark.parametrize(
    "block", [block for block in all_blocks() if block.language in ("json", "toml")], ids=str
)
def test_data_can_be_read(block: Block) -> None:
    """JSON and TOML of the pages are valid."""
    (json.loads if block.language == "json" else tomllib.loads)(block.text)


# --- command lines ----------------------------------------------------------------------------------------


def command_lines() -> list[str]:
    """Return every command line of the pages, without prompt and comment."""
    blocks = [block for block in all_blocks() if kind_of(block) == "command lines"]
    return sorted(
        {re.sub(r"\s+#.*", "", line).removeprefix("$ ").strip() for block in blocks for line in block.lines}
    )


def verbs_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a command's verbs, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def parser_of(command: str) -> argparse.ArgumentParser:
    """Return the parser of a command of manage.py."""
    app = get_commands()[command]
    loaded = app if isinstance(app, BaseCommand) else load_command_class(app, command)
    return loaded.create_parser("manage.py", command)


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings}


@pytest.mark.parametrize("line", command_lines())
def test_a_command_line_is_understood(line: str) -> None:
    """Commands, options, modules, targets of make and extras of the package are there."""
    words = shlex.split(line)
    while words[0] in PYTHONS or (words[0] == "manage.py" and words[1] == "manage.py"):
        words = words[1:]
    if words[0] == "manage.py":
        parser = parser_of(words[1])
        parser = verbs_of(parser).get(words[2], parser) if len(words) > 2 else parser
        named = {word.partition("=")[0] for word in re.findall(r"--[a-z][\w-]*", line.partition(" -- ")[0])}
        assert named <= options_of(parser)
    elif words[0] == "-m":
        release = (ROOT / "requirements-release.txt").read_text()
        assert importlib.util.find_spec(words[1]) is not None or re.search(rf"^{words[1]}\b", release, re.M)
    elif words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[1] in targets
    else:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert {
            extra for found in re.findall(r"django-holdfast\[([\w,]+)\]", line) for extra in found.split(",")
        } <= set(extras)


# --- links ------------------------------------------------------------------------------------------------


LAB = ("lab:index.html", "lab:zh-hans.html")  # written beside the built pages, where a browser follows them


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_links_of_a_page_lead_somewhere(page: Any) -> None:
    """Every link names a file of the project and, where it has an anchor, a heading of that file."""
    lost = []
    for link in (text or image for text, image in LINK.findall(page.read_text())):
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if (link not in LAB and not target.exists()) or (anchor and anchor not in anchors_of(target)):
            lost.append(link)
    assert lost == []

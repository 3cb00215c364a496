"""Projects that lack an app of Django's, or this one: each entry point works in each."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests import ROOT

ENDS = {
    "check": [],
    "migrate": "migrated",
    "function": 7,
    "coroutine": 7,
    "block": "held",
    "async block": "held",
    "transaction": "committed",
    "task": 7,
    "view": "200 text/html done",
    "async view": "done",
    "template": "rendered",
    "list": "STATE",
}


@pytest.mark.parametrize(
    "missing",
    ["", "admin", "auth", "sessions", "templates", "app", "admin app", "admin app auth sessions templates"],
)
def test_a_project_without(missing: str) -> None:
    """`check`, templates, views, tasks, blocks, the refusal's page and the command; one line in the log where
    the page isn't found."""
    command = [sys.executable, "-m", "tests.locking.support.bare_project", *missing.split()]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    said = json.loads(ran.stdout)
    page, problem = said.pop("refused page"), said.pop("refused problem")
    assert said == {name: end for name, end in ENDS.items() if name in said}
    assert page.startswith("409 text/html <!DOCTYPE html>")
    assert "Someone else is working on this right now" in page
    assert problem.startswith("409 application/problem+json")
    built_in = {"app", "templates"} & set(missing.split())
    assert ran.stderr.count("a built-in page answers") == bool(built_in)

"""Projects that lack an app of Django's, or this one: each entry point works in each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.locking.test_size import LOCKING, part_of

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


CORE_ALONE = """
import django
from django.conf import settings
memory = {"BACKEND": "locking.backends.memory.MemoryBackend"}
databases = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
settings.configure(LOCKING={"default": memory}, DATABASES=databases)
django.setup()
from locking import distributed_lock, get_lock, get_semaphore, locked_transaction
called = distributed_lock(key="a:{n}")(lambda n: n)(7)
with get_lock("b", "c") as lease, get_semaphore("d", 2), locked_transaction("e"):
    print(called, *lease.names)
"""


def test_the_core_works_where_no_other_part_is(tmp_path: Path) -> None:
    """Each optional part may be left out: its folder isn't even there."""
    for path in LOCKING.rglob("*.py"):
        if path.parent.name not in ("migrations", "contract") and part_of(path) == "core":
            copy = tmp_path / "locking" / path.relative_to(LOCKING)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    command = [sys.executable, "-c", CORE_ALONE]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.stdout, ran.stderr) == ("7 b c\n", "")


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

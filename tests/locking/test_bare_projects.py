"""Projects that lack an app of Django's, or this one: each entry point works in each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings

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
    copy_parts(tmp_path, "core")
    assert printed_by(CORE_ALONE, tmp_path) == ("7 b c\n", "")


def copy_parts(folder: Path, *parts: str) -> None:
    """Make a `locking` in the folder that has these parts only."""
    for path in [*LOCKING.rglob("*.py"), *LOCKING.rglob("*.lua")]:
        if path.suffix == ".py" and path.parent.name in ("migrations", "contract"):
            continue
        if path.suffix == ".lua" or part_of(path) in parts:
            copy = folder / "locking" / path.relative_to(LOCKING)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())


def printed_by(code: str, folder: Path) -> tuple[str, str]:
    """Return what a new process says whose `locking` is in this folder."""
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return ran.stdout, ran.stderr


REDIS_ALONE = (
    CORE_ALONE.partition("from locking import distributed")[0]
    .replace("locking.backends.memory.MemoryBackend", "locking.backends.redis.RedisBackend")
    .replace('"}\n', '", "LOCATION": "%s", "KEY_PREFIX": "alone:"}\n', 1)
    + """
from locking import LockNotSupported, get_lock, get_read_lock
from locking.core.handler import locks
with get_lock("a", ttl=5):
    print([held.key for held in locks["default"].held()], sorted(locks["default"].kinds))
try:
    get_read_lock("a").acquire()
except LockNotSupported as error:
    print(error)
"""
)


def test_redis_works_without_redissons_kinds(tmp_path: Path) -> None:
    """The ordinary lock and its list need none of them, and what needs them says so."""
    copy_parts(tmp_path, "core", "redis")
    said, failed = printed_by(REDIS_ALONE % settings.REDIS_URL, tmp_path)
    assert failed == ""
    assert said.splitlines()[0] == "['alone:a'] []"
    assert "can't make a read lock" in said.splitlines()[1]


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

"""The wheel of `locking` alone, used in an environment that has nothing of this project."""

import ast
import os
import re
import subprocess
import zipfile
from pathlib import Path

from django.conf import settings

from tests import ROOT

SETTINGS = """
DEBUG = True  # the memory backend is warned of elsewhere
SECRET_KEY = "only for this test"
DEBUG = True  # the memory backend is warned of otherwise
INSTALLED_APPS = ["locking"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
LOCKING = {
    "default": {"BACKEND": "locking.backends.redis.RedisBackend", "LOCATION": "%s"},
    "memory": {"BACKEND": "locking.backends.memory.MemoryBackend"},
}
"""

USE = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "scratch"
import django
django.setup()
from locking import LockNotAcquired, get_lock
import locking
assert "site-packages" in locking.__file__, locking.__file__
for backend in ("memory", "default"):
    with get_lock("order:42", ttl=10, backend=backend) as lease:
        assert lease.fencing_token > 0 and lease.remaining() > 5
        assert get_lock("order:42", backend=backend).locked()
    assert not get_lock("order:42", backend=backend).locked()
print("used")
"""


def test_it_holds_locking_alone_with_all_its_files(wheel):
    """Every file of the app is in the wheel, and nothing of the demo project."""
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    here = [
        path for path in (ROOT / "locking").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    assert packed == {str(path.relative_to(ROOT)) for path in here}
    assert {"locking/py.typed", "locking/__init__.py"} <= packed
    assert any(name.endswith(".lua") for name in packed)


def test_its_metadata_stands_alone(wheel):
    """The page on an index has no link into a checkout; license, plugin and versions are declared."""
    with zipfile.ZipFile(wheel) as packed:
        (name,) = [each for each in packed.namelist() if each.endswith(".dist-info/METADATA")]
        metadata = packed.read(name).decode()
        entry_points = packed.read(name.replace("METADATA", "entry_points.txt")).decode()
        assert any(each.endswith("licenses/LICENSE") for each in packed.namelist())
    assert re.findall(r"\]\((?!https?:)[^)]*\)", metadata) == []
    assert "Python 3.11 to" in metadata  # the package's own page, not the demo's
    assert "locking = locking.testing.pytest_plugin" in entry_points
    for tried in ("Framework :: Django :: 6.1", "Programming Language :: Python :: 3.13"):
        assert f"Classifier: {tried}" in metadata


def test_no_text_points_to_a_page_that_the_wheel_has_not():
    """Errors and hints name no file of the documentation: who installed the wheel has none."""
    pointing = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (ROOT / "locking").rglob("*.py")
        for node in texts(ast.parse(path.read_text()))
        if re.search(r"\bdocs/", str(node.value))
    ]
    assert pointing == []


def texts(tree: ast.AST) -> list[ast.Constant]:
    """Every string of a module but its docstrings."""
    statements = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    return [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in statements]


def test_it_works_in_an_empty_environment(wheel_environment, tmp_path):
    """Installed with its redis extra and nothing else, it locks through both backends and passes check."""
    python = wheel_environment / "bin" / "python"
    (tmp_path / "scratch.py").write_text(SETTINGS % settings.REDIS_URL)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO", "PYTHON"))}
    check = ["-m", "django", "check", "--settings", "scratch", "--pythonpath", "."]
    for arguments, said in (
        (["-c", USE], "used\n"),
        (check, "System check identified no issues (0 silenced).\n"),
    ):
        done = run([python, *arguments], tmp_path, clean)
        assert done.stdout == said, done.stderr


def run(
    command: list[str | Path], cwd: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a command of the empty environment."""
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)

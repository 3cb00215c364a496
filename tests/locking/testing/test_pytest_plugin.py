"""The pytest plugin, in pytest runs of its own."""

import pytest

from tests import ROOT

pytest_plugins = ["pytester"]

SETTINGS = """
SECRET_KEY = "only for this test"
INSTALLED_APPS = ["locking"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
LOCKING = {"default": {"BACKEND": "locking.backends.redis.RedisBackend", "LOCATION": "redis://127.0.0.1:1/0"}}
"""

TWO_TESTS = """
from django.test import TestCase
from locking import get_lock
from locking.backends.memory import MemoryBackend
from locking.core.handler import locks

kept = []

class Orders(TestCase):
    def leave_one_held(self):
        assert isinstance(locks["default"], MemoryBackend)
        kept.append(get_lock("order:42", wait=0, ttl=60).acquire())
        assert kept[-1].depth == 1

    test_one = test_two = leave_one_held
"""

FIXTURES = """
import pytest
from locking import get_lock
from locking.backends.memory import MemoryBackend
from locking.core.handler import locks

def in_memory():
    return isinstance(locks["default"], MemoryBackend)

def test_by_default():
    assert in_memory()

@pytest.mark.locks("configured")
def test_as_configured():
    assert not in_memory()

def test_in_memory(memory_locks):
    assert in_memory()

def test_isolated(isolated_locks):
    assert not in_memory()
    assert locks["default"].key("a").startswith("lock:test-")

@pytest.mark.locks("memory")
def test_by_marker():
    assert in_memory()
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the runs import this checkout, with settings of their own."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # what else is installed takes a second to load
    for name in ("DJANGO_SETTINGS_MODULE", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with a Redis that is not running."""
    pytester.makepyfile(project_settings=SETTINGS)
    return pytester


def run(project: pytest.Pytester, *arguments: str, setting: str | None = None) -> pytest.RunResult:
    """Run the project's tests, with the plugin as the installed package would load it."""
    chosen = "" if setting is None else f"locks_in_tests = {setting}\n"
    project.makeini(f"[pytest]\nDJANGO_SETTINGS_MODULE = project_settings\n{chosen}")
    return project.runpytest_subprocess(
        "-p", "pytest_django.plugin", "-p", "locking.testing.pytest_plugin", "-p", "no:cacheprovider",
        "--strict-markers", *arguments,
    )  # fmt: skip


def test_every_test_has_a_store_of_its_own(project: pytest.Pytester) -> None:
    """A lock that one TestCase method leaves held is free in the next."""
    project.makepyfile(TWO_TESTS)
    run(project).assert_outcomes(passed=2)


@pytest.mark.whole
def test_workers_do_not_meet(project: pytest.Pytester) -> None:
    """Two workers of xdist run tests on the same name, and neither sees the other's lock."""
    project.makepyfile(test_a=TWO_TESTS, test_b=TWO_TESTS)
    run(project, "-p", "xdist.plugin", "-n", "2").assert_outcomes(passed=4)


@pytest.mark.parametrize("setting", [None, "configured", "isolated"])
def test_fixtures_and_markers_count_whatever_the_setting(
    project: pytest.Pytester, setting: str | None
) -> None:
    """Without one a developer's Redis is never used; a test asks for it by its marker."""
    project.makepyfile(FIXTURES if setting is None else FIXTURES.replace("test_by_default", "by_default"))
    run(project, setting=setting).assert_outcomes(passed=5 if setting is None else 4)


def test_a_class_with_settings_of_its_own_keeps_them(project: pytest.Pytester) -> None:
    """Whatever it says of locks counts for its tests, and for no other."""
    project.makepyfile(
        """
from django.test import TestCase, override_settings
from locking.core.handler import locks

@override_settings(LOCKING={"default": {"LOCATION": "redis://127.0.0.1:1/0"}})
class Own(TestCase):
    def test_own(self):
        assert "redis" in locks["default"].settings.backend

def test_others():
    assert "memory" in locks["default"].settings.backend
"""
    )
    run(project).assert_outcomes(passed=2)


@pytest.mark.parametrize("place", ["redis", "Memory"])
def test_a_misspelt_place_is_reported(project: pytest.Pytester, place: str) -> None:
    """The message names the setting, the value and what it may be."""
    project.makepyfile("def test(): pass")
    result = run(project, setting=place)
    result.stderr.fnmatch_lines(
        [f"*locks_in_tests must be one of memory, configured, isolated, not '{place}'"]
    )


def test_a_project_without_django_settings_is_left_alone(pytester: pytest.Pytester) -> None:
    """Installed beside a project that doesn't use Django, the plugin does nothing."""
    pytester.makepyfile("def test(): pass")
    pytester.makeini("[pytest]")
    plugins = ("-p", "locking.testing.pytest_plugin", "-p", "no:cacheprovider")
    pytester.runpytest_subprocess(*plugins).assert_outcomes(passed=1)

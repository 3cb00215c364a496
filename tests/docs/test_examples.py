import re
import unittest
from typing import Any

import pytest
from django.test import SimpleTestCase
from django_redis import get_redis_connection

from config.settings import INSTALLED_APPS
from tests import ROOT
from tests.docs.pages import PAGES, name_of

PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FOREIGN = re.compile(r"^```py\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EITHER = re.compile(r"^```py(?:thon)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
IMPORT = re.compile(r"^(?:import|from) ([\w.]+)", re.MULTILINE)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("page", [page for page in PAGES if PYTHON.search(page.read_text())], ids=name_of)
def test_the_examples_of_a_page_run(page):
    """The Python of a page runs from top to bottom, as a reader would type it."""
    names = {"__name__": f"examples of {name_of(page)}", "INSTALLED_APPS": list(INSTALLED_APPS)}
    for block in PYTHON.findall(page.read_text()):
        exec(compile(block, name_of(page), "exec"), names)  # noqa: S102 - our own pages
    assert failures_of_test_cases(names) == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("page", [page for page in PAGES if FOREIGN.search(page.read_text())], ids=name_of)
def test_the_examples_of_a_page_run_with_the_other_library(page):
    """A page about another library runs from top to bottom where that is installed."""
    text = page.read_text()
    for library in IMPORT.findall("".join(FOREIGN.findall(text))):
        pytest.importorskip(library)
    names = {"__name__": f"examples of {name_of(page)}", "client": get_redis_connection()}
    for block in EITHER.findall(text):
        exec(compile(block, name_of(page), "exec"), names)  # noqa: S102 - our own pages


def failures_of_test_cases(names: dict[str, Any]) -> list[Any]:
    """Run the test cases that a page has defined."""
    result = unittest.TestResult()
    for value in names.values():
        if (
            isinstance(value, type)
            and issubclass(value, SimpleTestCase)
            and value.__module__ == names["__name__"]
        ):
            unittest.defaultTestLoader.loadTestsFromTestCase(value).run(result)
    return result.failures + result.errors


def test_every_promise_names_a_test_that_exists() -> None:
    """The page *Why another lock?* says for each promise which test keeps it."""
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/library/explanation" / "why.md").read_text()))
    sources = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "locking" / "testing").rglob("*.py")]
    defined = {name for path in sources for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert len(named) > 20
    assert named <= defined

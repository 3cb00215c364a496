"""The built documentation in a browser: narrow screens, both modes, search, copying, and what axe finds."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from tests import ROOT
from tests.browser.files import file_server
from tests.browser.looks import axe_violations

pytestmark = [
    pytest.mark.timeout(300),
    # No other test needs it.
    pytest.mark.skipif(not importlib.util.find_spec("sphinx"), reason="make docs installs Sphinx"),
]

PHONE: ViewportSize = {"width": 360, "height": 740}
LOOKED_AT = (
    "index", "search", "library/tutorial/first-view", "library/explanation/how-safe",
    "library/how-to/lock-server-down", "library/how-to/fencing", "library/how-to/held-locks",
    "library/reference/api/locks", "library/reference/backends/redis", "shop/tutorial/lab",
    "adr/0009-the-fence-is-a-row-written-first",
)  # fmt: skip
"""A page of each kind."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation as `make docs` builds it: a warning fails."""
    folder = tmp_path_factory.mktemp("site") / "html"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", str(ROOT / "docs"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


@pytest.fixture(params=["light", "dark"])
def phone(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page of 360 pixels, in either mode."""
    context = browser.new_context(viewport=PHONE, color_scheme=request.param)
    yield context.new_page()
    context.close()


def test_nothing_is_wider_than_a_phone(site: Path, browser: Browser) -> None:
    """No page of the site scrolls sideways at 360 pixels: tables, code and pictures do by themselves."""
    with browser.new_context(viewport=PHONE) as context:
        page = context.new_page()
        wide = []
        for path in sorted(site.rglob("*.html")):
            page.goto(path.as_uri())
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                wide.append(str(path.relative_to(site)))
    assert wide == []


def test_axe_finds_nothing(site: Path, phone: Page) -> None:
    """The kinds of page that there are have no violation that axe-core finds, in either mode."""
    found = {}
    for name in LOOKED_AT:
        phone.goto((site / f"{name}.html").as_uri())
        if violations := axe_violations(phone):
            found[name] = [violation["id"] for violation in violations]
    assert found == {}


def test_pictures_follow_the_mode(site: Path, phone: Page) -> None:
    """A drawn picture has the colors of the chosen mode, and a toggled mode changes them."""
    phone.goto((site / "library/how-to/fencing.html").as_uri())
    paper = "getComputedStyle(document.querySelector('.drawn .paper')).fill"
    seen = set()
    for mode in ("light", "dark"):
        phone.evaluate(f"document.body.dataset.theme = '{mode}'")
        seen.add(phone.evaluate(paper))
    assert len(seen) == 2


def test_screenshots_follow_the_mode(site: Path, phone: Page) -> None:
    """Of each screenshot only the one of the chosen mode is seen."""
    phone.goto((site / "library/how-to/held-locks.html").as_uri())
    for mode in ("light", "dark"):
        phone.evaluate(f"document.body.dataset.theme = '{mode}'")
        seen = [image.get_attribute("src") or "" for image in phone.locator(".content img:visible").all()]
        assert len(seen) == 3
        assert all(source.endswith(f"-{mode}.png") for source in seen)


@pytest.fixture(scope="module")
def hosted(site: Path) -> Iterator[str]:
    """The address of a file server with the site, after what Read the Docs runs when it has built it."""
    (command,) = re.findall(r"post_build:\n(?: *#.*\n)* *- (.+)", (ROOT / ".readthedocs.yaml").read_text())
    programs = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    output = {"READTHEDOCS_OUTPUT": str(site.parent), "PATH": programs}
    subprocess.run(["/bin/sh", "-c", command], cwd=ROOT, env=output, check=True, stdout=subprocess.DEVNULL)
    with file_server(site) as address:
        yield address


def test_the_lab_is_opened_from_the_documentation(hosted: str, browser: Browser) -> None:
    """The built pages have the static lab beside them, and their links lead to it, from a file server."""
    with browser.new_context(reduced_motion="reduce") as context:
        page = context.new_page()
        for language, headline in (
            ("English", "30 people paid for"),
            ("中文", "30 个人为不存在的杯子付了钱"),
        ):
            page.goto(f"{hosted}/shop/tutorial/lab.html")
            page.get_by_role("link", name=language, exact=True).click()
            expect(page.locator("#left .headline")).to_contain_text(headline)
            expect(page.locator("[data-puzzle]")).to_have_count(20)


QUESTIONS = {
    "redis down": "lock-server-down",
    "celery retry": "celery",
    "choose backend": "backends/index",
    "stuck lock": "debug-a-stuck-lock",
    "test without redis": "testing",
    "migrate from cache.lock": "migrate/redis-py",
    "lock a view": "views",
    "fencing token": "fencing",
    "deadlock": "deadlocks",
    "409 conflict": "responses",
    "503 unavailable": "responses",
    "prometheus metrics": "metrics",
    "cron job": "periodic",
    "async view": "views",
    "semaphore": "other-locks",
    "read write lock": "other-locks",
    "redis cluster": "high-availability",
    "force release": "held-locks",
    "admin": "held-locks",
    "mysql": "backends/database",
    "sqlite": "backends/database",
    "postgresql advisory lock": "advisory",
    "pgbouncer": "deployment",
    "open transaction": "open-transactions",
    "java redisson": "java",
    "install": "first-view",
}
"""What readers type, and the page that answers it."""


def hits(page: Page, site: Path, question: str) -> list[str]:
    """Return the pages that Sphinx's own search finds, the best first."""
    page.goto(f"{(site / 'search.html').as_uri()}?q={quote(question)}")
    expect(page.locator("#search-results .search-summary")).to_contain_text("finished")
    links = page.locator("#search-results ul.search > li > a")
    return [(link.get_attribute("href") or "").split(".html")[0] for link in links.all()[:10]]


def test_a_reader_searches(site: Path, browser: Browser) -> None:
    """Each question is answered by one of the first three hits."""
    with browser.new_context() as context:
        page = context.new_page()
        found = {question: hits(page, site, question)[:3] for question in QUESTIONS}
    missed = {q: pages for q, pages in found.items() if not any(p.endswith(QUESTIONS[q]) for p in pages)}
    assert missed == {}


def test_code_can_be_copied(site: Path, phone: Page) -> None:
    """Each block of code has a button that copies it, without prompts and outputs."""
    phone.goto((site / "library/tutorial/first-view.html").as_uri())
    blocks = phone.locator("div.highlight pre").count()
    assert phone.locator("button.copybtn").count() == blocks > 5

"""A real Chromium before the real web server, on the tests' own database and Redis."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from locking.inspection.held import held_locks
from orders.lab.models import LabEvent, LabRun
from tests.browser.looks import SHOTS
from tests.support.processes import until

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 20_000  # ms; on a loaded machine everything still comes, only later
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first that is installed. It is Chromium without windows, which take two thirds of the CPU time."""
CHROMIUM = next(filter(None, map(shutil.which, PROGRAMS)), None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip where there is no browser, and say so; commit what a test writes, for the server to see it."""
    unwanted = [item for item in items if not SHOTS and item.get_closest_marker("pictures")]
    items[:] = [item for item in items if item not in unwanted]
    config.hook.pytest_deselected(items=unwanted)
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.django_db(transaction=True))
            item.add_marker(pytest.mark.skipif(not CHROMIUM, reason=f"apt-get install {PROGRAMS[0]}"))


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One Chromium for the tests of this folder; each test has its own context in it."""
    # Playwright keeps an event loop running in this thread, which Django takes for async code; none of ours
    # runs in it, so the ORM may be used here. It ends with the folder: tests of async code need a loop too.
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        expect.set_options(timeout=PATIENCE)
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def complaints() -> list[str]:
    """What the browser's console complained of; a test takes out what it provoked on purpose."""
    return []


@pytest.fixture
def open_page(
    browser: Browser, server: str, complaints: list[str], transactional_db: None
) -> Iterator[Callable[..., Page]]:
    """Open an address of the shop in a fresh context; at the end nothing may have been complained of."""
    contexts: list[BrowserContext] = []

    def open_address(address: str, **options: object) -> Page:
        context = browser.new_context(base_url=server, **options)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: complaints.extend(_complaint(message)))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        return page

    yield open_address
    for context in contexts:
        context.close()
    end_lab_runs()
    assert complaints == []


def end_lab_runs() -> None:
    """Stop what a page has left running: it would go on while the database is emptied, and write into it.

    The web server holds the lock of a run until the run's process has ended.
    """
    for run in LabRun.objects.filter(ended_at=None):
        LabEvent.objects.create(run=run, sender=LabEvent.Sender.VISITOR, data={"say": "stop"})
    until(lambda: not held_locks(prefix="lab:").rows, "the runs of the lab have ended")


def _complaint(message: ConsoleMessage) -> list[str]:
    return [message.text] if message.type in ("error", "warning") else []

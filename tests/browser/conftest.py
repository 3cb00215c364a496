"""A real Chromium before the real web server, on the tests' own database and Redis."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    ViewportSize,
    expect,
    sync_playwright,
)

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
    "--renderer-process-limit=1",  # of each context: its pages use one process
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
    """One Chromium for the tests of this folder."""
    # Playwright keeps an event loop running in this thread, which Django takes for async code; none of ours
    # runs in it, so the ORM may be used here. It ends with the folder: tests of async code need a loop too.
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        expect.set_options(timeout=PATIENCE)
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


OF_A_CONTEXT = ("locale", "device_scale_factor", "java_script_enabled", "bypass_csp")
"""What a context has for good; the other options are a page's."""
SIZE: ViewportSize = {"width": 1280, "height": 720}


class Contexts:
    """Contexts of the browser for one test after another: a new one means a new process, and a cold cache.

    Each has a page that stays open, and so its process. What a test leaves in one is cleared: cookies and
    stored data; the session's data are those of a page.
    """

    def __init__(self, browser: Browser, server: str) -> None:
        self._browser, self._server = browser, server
        self._idle: dict[str, list[BrowserContext]] = {}

    @contextmanager
    def one(self, options: dict[str, Any]) -> Iterator[BrowserContext]:
        """Yield a context with these options, which no other page has meanwhile."""
        idle = self._idle.setdefault(repr(sorted(options.items())), [])
        context = idle.pop() if idle else self._begun(options)
        yield context
        first, *others = context.pages
        for page in others:
            page.close()
        first.evaluate("localStorage.clear()")
        context.clear_cookies()
        idle.append(context)

    def _begun(self, options: dict[str, Any]) -> BrowserContext:
        context = self._browser.new_context(base_url=self._server, **options)
        context.new_page().goto("/livez")
        return context


@pytest.fixture(scope="package")
def contexts(browser: Browser, server: str) -> Contexts:
    """The contexts of the tests of this folder."""
    return Contexts(browser, server)


@pytest.fixture
def complaints() -> list[str]:
    """What the browser's console complained of; a test takes out what it provoked on purpose."""
    return []


@pytest.fixture
def open_page(
    browser: Browser, contexts: Contexts, server: str, complaints: list[str], transactional_db: None
) -> Iterator[Callable[..., Page]]:
    """Open an address of the shop as one who was never here; at the end nothing may have been complained of.

    With a `clock` of its own, which it may turn, the page has a context that no other test gets.
    """
    opened = ExitStack()

    def open_address(
        address: str, cookies: Mapping[str, str] | None = None, clock: bool = False, **options: Any
    ) -> Page:
        lasting = {name: options.pop(name) for name in OF_A_CONTEXT if name in options}
        if clock:
            context = opened.enter_context(browser.new_context(base_url=server, **lasting))
            context.clock.install()
        else:
            context = opened.enter_context(contexts.one(lasting))
        given = cookies or {}
        context.add_cookies([{"name": name, "value": value, "url": server} for name, value in given.items()])
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.set_viewport_size(options.pop("viewport", SIZE))
        page.emulate_media(**options)
        page.on("console", lambda message: complaints.extend(_complaint(message)))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        return page

    with opened:
        yield open_address
    end_lab_runs()
    assert complaints == []


@pytest.fixture
def open_admin(open_page: Callable[..., Page], admin_client: Client) -> Callable[..., Page]:
    """Open a page of the admin as a user who is signed in and may do everything."""
    session = admin_client.cookies["sessionid"].value

    def open_address(address: str, language: str = "en", **options: object) -> Page:
        cookies = {"sessionid": session, "django_language": language}
        return open_page(address, cookies, **options)

    return open_address


def end_lab_runs() -> None:
    """Stop what a page has left running: it would go on while the database is emptied, and write into it.

    The web server holds the lock of a run until the run's process has ended.
    """
    for run in LabRun.objects.filter(ended_at=None):
        LabEvent.objects.create(run=run, sender=LabEvent.Sender.VISITOR, data={"say": "stop"})
    until(lambda: not held_locks(prefix="lab:").rows, "the runs of the lab have ended")


def _complaint(message: ConsoleMessage) -> list[str]:
    return [message.text] if message.type in ("error", "warning") else []

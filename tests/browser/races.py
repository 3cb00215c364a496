"""Races of the lab as the browser's tests start and await them."""

from contextlib import contextmanager

from playwright.sync_api import expect

SOON = 60_000  # ms; a race starts processes, and the machine may be loaded


def race_ends(page):
    """Wait until the buttons may be pressed again."""
    expect(page.locator("#lab")).to_have_attribute("aria-busy", "false", timeout=SOON)


@contextmanager
def before_it_begins(page):
    """Keep the request for a race on its way: the page is busy for as long as the block lasts."""
    page.route("**/lab/races/", lambda _: None)
    yield
    page.unroute("**/lab/races/")  # what was kept goes on with it

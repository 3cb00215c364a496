"""How the browser's tests look at a page: what axe-core finds, in light and dark, and pictures."""

import os
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe

AXE = Axe()
SHOTS = os.environ.get("HOLDFAST_SCREENSHOTS")  # a folder; unset: no pictures are made
WIDTHS = (360, 768, 1280, 1920)
PHONE = {"width": 360, "height": 740}
CONTRAST = """([one, other]) => {
  const probe = document.body.appendChild(document.createElement("i"));
  const light = (color) => {
    probe.style.setProperty("color", color);
    const [r, g, b] = getComputedStyle(probe).color.match(/[\\d.]+/g).map((c) => c / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const [high, low] = [light(`var(--${one})`), light(`var(--${other})`)].sort((a, b) => b - a);
  probe.remove();
  return (high + 0.05) / (low + 0.05);
}"""
"""A script: the contrast of two of the page's colors, by the names of their custom properties."""


LOADED = "typeof axe !== 'undefined'"
RUN = """(rules) => axe.run({resultTypes: ['violations'], ...rules})
  .then((results) => results.violations)"""
COLORS = ["color-contrast", "link-in-text-block"]
"""The rules that look at colors, which takes longer than all the others together."""
ALL: dict[str, Any] = {}
ONLY_COLORS: dict[str, Any] = {"runOnly": COLORS}
ALL_BUT_COLORS: dict[str, Any] = {"rules": {name: {"enabled": False} for name in COLORS}}


def axe_violations(page, rules=ALL):
    """Return the violations as axe-core describes them; it is loaded once per page."""
    if not page.evaluate(LOADED):
        page.evaluate(AXE.axe_script)
    return page.evaluate(RUN, rules)


def violations(page, rules=ALL):
    """Return what axe-core finds wrong with the page as it is, by these rules."""
    found = axe_violations(page, rules)
    return [(each["id"], [node["html"][:160] for node in each["nodes"]]) for each in found]


SETTLED = """() => Promise.all(document.getAnimations()
  .filter((each) => each instanceof CSSTransition).map((each) => each.finished.catch(() => {})))"""
"""A script: wait until colors that change by and by have changed."""


def in_both_schemes(page, look):
    """Look at the page in light and in dark."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.evaluate(SETTLED)
        look(scheme)


def violations_in(page, scheme, language="en"):
    """Return what is wrong with the page in a scheme and a language.

    Colors don't depend on the language, nor names on the scheme: each is looked at once.
    """
    if scheme == "dark":
        return violations(page, ONLY_COLORS) if language == "en" else []
    return violations(page, ALL if language == "en" else ALL_BUT_COLORS)


def no_violations(page):
    """For `in_both_schemes`: nothing is wrong with the page."""

    def look(scheme):
        assert violations_in(page, scheme) == [], scheme

    return look


def scroll_width(page):
    """Return how wide the page is: more than its window where it scrolls sideways."""
    return page.evaluate("document.documentElement.scrollWidth")


def picture(page, name, height=None):
    """For `in_both_schemes`: a picture for the docs, of the whole page or its first `height` pixels."""

    def look(scheme):
        if height is None:
            page.screenshot(path=f"{SHOTS}/{name}-{scheme}.png")
        else:
            clip = {"x": 0, "y": 0, "width": page.viewport_size["width"], "height": height}
            page.screenshot(path=f"{SHOTS}/{name}-{scheme}.png", clip=clip, full_page=True)

    return look


def shot(page, name):
    """Take a picture of the whole page, if that is wanted."""
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)


def at_widths(page, *widths):
    """Give the page each of these widths, in turn; it isn't loaded again."""
    for width in widths:
        page.set_viewport_size({"width": width, "height": 900})
        yield width


def at_each_width(page, name):
    """Take a picture at each of `WIDTHS`, if that is wanted."""
    for width in WIDTHS if SHOTS else ():
        page.set_viewport_size({"width": width, "height": 900})
        shot(page, f"{name}-{width}")


FRAME = """([selector, caption]) => {
  const frame = document.createElement("figure");
  const text = document.createElement("figcaption");
  text.textContent = caption;
  frame.append(text, document.querySelector(selector).cloneNode(true));
  (window.frames_of_strip ??= []).push(frame);
}"""
STRIP = """() => {
  const strip = document.createElement("div");
  strip.id = "strip";
  strip.style.cssText = "display: flex; gap: 12px; padding: 12px";
  strip.append(...window.frames_of_strip);
  const style = "flex: 1; min-width: 0; margin: 0; font-size: 14px";
  for (const frame of window.frames_of_strip) frame.style.cssText = style;
  for (const lanes of strip.querySelectorAll(".lanes")) lanes.style.gridTemplateColumns = "minmax(0, 1fr)";
  for (const part of strip.querySelectorAll(".next, .marks")) part.remove();
  for (const part of document.body.children) part.style.cssText = "position: fixed; left: -300vw";
  document.body.append(strip);
}"""


def frame(page, selector, caption):
    """Keep what is seen now as the next frame of a strip."""
    page.evaluate(FRAME, [selector, caption])


def strip(page):
    """Show the frames beside each other, and nothing else; return how high they are."""
    page.evaluate(STRIP)
    return page.evaluate("Math.ceil(document.getElementById('strip').getBoundingClientRect().height)")

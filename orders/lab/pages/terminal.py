"""Step by step on a terminal: two buyers, keys a and b, the same session as on the page."""

from __future__ import annotations

import os
import select
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from orders.lab.pages.stepping import Session
from orders.lab.race import lab_products
from orders.lab.race.explain import headings, opening
from orders.lab.strategies import STRATEGIES

LOOK_EVERY = 0.05
KEYS = {"a": "A", "b": "B"}
ANSWERS = {"sold": "✓ bought it", "refused": "✗ sold out", "home": "went home"}


def walk(strategy: str, console: Console, keys: TextIO) -> bool:
    """Let a person lead two buyers through `strategy`, each to its next checkpoint, until both are done."""
    with ExitStack() as stack:
        race = stack.enter_context(lab_products.race_in_progress())
        products = lab_products.stock_up_cart(race, 1, strategy, 1)
        session = stack.enter_context(Session([product.sku for product in products], strategy))
        console.print(f"{strategy}: one piece is left, two buyers want it. Keys: a, b, q.", style="bold")
        pressed = stack.enter_context(_pressed(keys))
        seen = _lead(session, console, pressed)
    return _judge(strategy, seen, console)


def _lead(session: Session, console: Console, pressed: Iterator[str]) -> dict[str, Any]:
    shown: dict[str, str] = {}
    key = ""
    while True:
        over = session.over
        seen = session.snapshot()
        for name, lane in seen["lanes"].items():
            _show(console, shown, name, lane)
        if over:
            return seen
        key = _pass_on(session, seen, key or next(pressed))


def _pass_on(session: Session, seen: dict[str, Any], key: str) -> str:
    """Do what a key says; a buyer on its way gets it when it has arrived: the key is returned until then."""
    if key == "q":
        session.advance("stop")
    if key not in KEYS:
        return ""
    lane = seen["lanes"][KEYS[key]]
    if lane["state"] == "parked":
        session.advance(KEYS[key])
    elif lane["state"] != "done" and not lane["blocked"]:
        time.sleep(LOOK_EVERY)
        return key
    return ""


def _show(console: Console, shown: dict[str, str], name: str, lane: dict[str, Any]) -> None:
    """Say where a buyer is, when it has moved."""
    text = _where(lane)
    if text and shown.get(name) != text + str(len(lane["marks"])):
        shown[name] = text + str(len(lane["marks"]))
        # The two stand in two columns, as on the page.
        console.print(Text(("" if name == "A" else " " * 44) + f"{name}  {text}"))


def _where(lane: dict[str, Any]) -> str:
    if lane["state"] == "done":
        return ANSWERS.get(lane["answer"], f"! {lane['problem']}")
    if lane["blocked"]:
        return f"waits for {lane['blocked']['by']}, who has the {lane['blocked']['on']}"
    if lane["state"] != "parked":
        return ""
    if not lane["marks"]:
        return "has not begun"
    mark, stock, line = lane["marks"][-1]
    return f"{mark}{'' if stock is None else f' {stock}'}{f', line {line}' if line else ''}"


def _judge(strategy: str, seen: dict[str, Any], console: Console) -> bool:
    missing = seen["initial"] - seen["sold"] - seen["left"]
    console.print(f"sold {seen['sold']} of {seen['initial']}, {seen['left']} left, {missing} unaccounted for")
    twice: bool = seen["sold"] > seen["initial"]
    if twice:
        console.print("You did it: the last piece is sold twice.", style="bold")
    elif STRATEGIES[strategy].sound and seen["sold"]:
        console.print(f"It can't be sold twice. {opening(headings(STRATEGIES[strategy])['Verdict'])}")
    return twice


@contextmanager
def _pressed(keys: TextIO) -> Iterator[Iterator[str]]:
    """The keys as they are pressed, an empty one after a while without; a terminal is put back after it."""
    if not keys.isatty():
        yield _typed(keys)
        return
    before = termios.tcgetattr(keys)
    tty.setcbreak(keys)
    try:
        yield _typed(keys)
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)


def _typed(keys: TextIO) -> Iterator[str]:
    while True:
        ready, _, _ = select.select([keys], [], [], LOOK_EVERY)
        # Unbuffered, or select() would not see the rest. An empty read is the end of the input.
        yield (os.read(keys.fileno(), 1).decode(errors="replace").lower() or "q") if ready else ""

"""Record a session of steps: what real buyers do in every order in which they can be led.

Runs are made until each button has been pressed in each state that was met. States that look alike are one,
so two dozen runs take the place of the 924 orders of two buyers with six steps.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from orders.lab.pages.stepping import Session
from orders.lab.race import lab_products

BUYERS: Final = "AB"
LOOK_EVERY: Final = 0.01
STABLE: Final = 0.2
"""Seconds for which a state with a waiter must last to be taken for one that lasts."""
PATIENCE: Final = 30.0
"""Seconds for a press to come to rest."""
OF_ONE_RUN: Final = re.compile(r" after \d+\.\d+ s|[\w.-]+:\d+:(?=[AB] )")
"""What a message says of one run alone: how long it waited, on which host and in which process."""
BARREN: Final = 3
"""Runs in succession that may find nothing new."""


@dataclass
class Recording:
    """The states that were met, and where a press in each leads.

    Attributes:
        lanes, products: each look of a buyer and of the stock, once; `states` have their places.
        states: one for each combination that was met; the first is the start.
        presses: by state and buyer, such as "0A": what came of it, as milliseconds and the state.
    """

    lanes: list[Any] = field(default_factory=list)
    products: list[Any] = field(default_factory=list)
    states: list[list[int]] = field(default_factory=list)
    presses: dict[str, list[list[int]]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return vars(self)

    def place_of(self, snapshot: dict[str, Any]) -> int:
        """Return the number of a state, which is noted if it is new."""
        lanes = [_number(self.lanes, snapshot["lanes"][name]) for name in BUYERS]
        state = [*lanes, _number(self.products, snapshot["products"]), snapshot["left"], snapshot["sold"]]
        return _number(self.states, state)

    def is_open(self, state: int, who: str) -> bool:
        """Whether a buyer could be led on from there, and never was."""
        lane = self.lanes[self.states[state][BUYERS.index(who)]]
        return lane["state"] == "parked" and f"{state}{who}" not in self.presses

    def way_on(self, state: int) -> str:
        """Return the press that leads the shortest way to one that was never made; "" if none is left."""
        ways = deque([(state, "")])
        met = {state}
        while ways:
            here, first = ways.popleft()
            for who in BUYERS:
                if self.is_open(here, who):
                    return first or who
                there = self.presses.get(f"{here}{who}", [[0, here]])[-1][1]
                if there not in met:
                    met.add(there)
                    ways.append((there, first or who))
        return ""


def record(strategy: str) -> Recording:
    """Lead buyers through runs of `strategy`, each on a new last piece, until nothing is new."""
    recording = Recording()
    new, barren = True, 0
    with lab_products.race_in_progress() as race:
        numbers = itertools.count(1)
        while new and barren < BARREN:
            products = lab_products.stock_up_cart(race, next(numbers), strategy, 1)
            skus = [product.sku for product in products]
            known = len(recording.presses)
            with Session(skus, strategy) as session:
                start = _lead_on(recording, _Look(session, skus))
            barren = 0 if len(recording.presses) > known else barren + 1
            new = bool(recording.way_on(start))
    return recording


def _lead_on(recording: Recording, look: _Look) -> int:
    """Lead the buyers of one run wherever something is new; return the state that it began in."""
    start = state = recording.place_of(look.at_rest()[-1][1])
    while who := recording.way_on(state):
        look.session.advance(who)
        seen = [[ms, recording.place_of(snapshot)] for ms, snapshot in look.at_rest()]
        recording.presses.setdefault(f"{state}{who}", seen)
        state = seen[-1][1]
    return start


class _Look:
    """Looks at a session until it rests, and gives its products names that are the same in every run."""

    def __init__(self, session: Session, skus: list[str]) -> None:
        self.session = session
        # The longest first: the second product's SKU begins with the first one's.
        self._names = sorted(((sku, f"product-{at + 1}") for at, sku in enumerate(skus)), reverse=True)

    def at_rest(self) -> list[tuple[int, dict[str, Any]]]:
        """Return the states that lasted since now, with their milliseconds: two if a ring was closed."""
        begun, found = time.monotonic(), []
        while True:
            snapshot = self._lasting(begun + PATIENCE)
            found.append((round((time.monotonic() - begun) * 1000), snapshot))
            if not all(lane["blocked"] for lane in snapshot["lanes"].values()):
                return found
            while self._seen() == snapshot:
                time.sleep(LOOK_EVERY)

    def _lasting(self, deadline: float) -> dict[str, Any]:
        """Wait until each buyer is parked, done or waits, and a waiter for so long that it isn't led on."""
        seen, since = self._seen(), time.monotonic()
        while time.monotonic() < deadline:
            lanes = seen["lanes"].values()
            rests = all(lane["state"] in ("parked", "done") or lane["blocked"] for lane in lanes)
            lasts = time.monotonic() - since > STABLE or not any(lane["blocked"] for lane in lanes)
            if rests and lasts:
                return seen
            time.sleep(LOOK_EVERY)
            now = self._seen()
            if now != seen:
                seen, since = now, time.monotonic()
        raise TimeoutError(f"buyers found no rest within {PATIENCE:g} s: {seen}")

    def _seen(self) -> dict[str, Any]:
        text = json.dumps(self.session.snapshot())
        for sku, name in self._names:
            text = text.replace(sku, name)
        found: dict[str, Any] = json.loads(OF_ONE_RUN.sub("", text))
        return found


def _number(known: list[Any], one: Any) -> int:
    """Return the place of `one` in the list, which it is added to if it is new."""
    if one not in known:
        known.append(one)
    return known.index(one)

"""Two buyers who stop at every checkpoint, each on a connection of its own, until they are led on."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from django.db import connection

from orders.lab.cart import Busy, Cart, SoldOut
from orders.lab.checkpoints import installed
from orders.lab.race.audit import look
from orders.lab.race.buyer import Cancelled, describe, seen
from orders.lab.race.source_lines import line_in, strategy_file
from orders.lab.strategies import base, get_strategy

LEAVE_WITHIN = 12.0


@dataclass
class Lane:
    """One buyer, who goes from one checkpoint to the next when it is led on."""

    name: str
    basket: tuple[str, ...]  # SKUs, of which it wants one each
    watched: str  # the SKU whose stock is shown
    strategy: str
    state: str = "starting"
    answer: str = ""
    problem: str = ""
    backend: int | None = None
    marks: list[tuple[str, int | None, int | None]] = field(default_factory=list)
    lock_names: dict[str, str] = field(default_factory=dict)  # of all it came to, by the SKU
    has: list[str] = field(default_factory=list)  # the SKUs whose locks it has, or waits for
    wants: list[str] = field(default_factory=list)
    victim: dict[str, list[str]] | None = None  # what it had and wanted when it was made to give up
    _turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._file = strategy_file(self.strategy)
        self._thread = threading.Thread(target=self._run, daemon=True, name=self.name)
        self._thread.start()

    def advance(self) -> None:
        """Go on to the next checkpoint; nothing happens while it is on its way, or blocked, or done."""
        if self.state == "parked":
            self.state = "running"
            self._turn.release()

    def send_home(self) -> None:
        """Give up at the next checkpoint."""
        self._stop.set()
        self._turn.release()

    def join(self) -> None:
        """Wait until it is home."""
        self._thread.join(LEAVE_WITHIN)

    @property
    def holds(self) -> bool:
        """Whether it has locked, and neither unlocked nor given up."""
        moves = [name for name, _, _ in self.marks if name in ("locked", "unlocked", "deadlocked", "busy")]
        return bool(moves) and moves[-1] == "locked" and self.state != "done"

    @property
    def last(self) -> str:
        """The checkpoint that it passed last."""
        return self.marks[-1][0] if self.marks else ""

    @property
    def stands_before_a_lock(self) -> bool:
        """Whether its thread is neither at a checkpoint nor with the database, but in some lock's code."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        elsewhere = False
        while frame is not None:
            code = frame.f_code
            elsewhere |= code.co_name == "_park" or code.co_filename == base.__file__
            elsewhere |= f"{os.sep}django{os.sep}db{os.sep}" in code.co_filename
            frame = frame.f_back
        return not elsewhere

    def _run(self) -> None:
        try:
            connection.ensure_connection()
            self.backend = connection.connection.info.backend_pid
            self._park()
            with installed(self._at_checkpoint):
                self._buy()
        except Cancelled:
            self.answer = "home"
        except Exception as error:
            self.answer, self.problem = "error", describe(error)
        finally:
            connection.close()
            self.has, self.wants = [], []
            self.state = "done"

    def _buy(self) -> None:
        while not self.answer:
            try:
                get_strategy(self.strategy).sell(Cart(dict.fromkeys(self.basket, 1)))
                self.answer = "sold"
            except SoldOut:
                self.answer = "refused"
            except Busy as busy:
                self.problem = str(busy)
                self.has, self.wants = [], []
                self.marks.append(("busy", None, None))
                self._park()

    def _at_checkpoint(self, name: str, /, **facts: object) -> None:
        self._note_locks(name, facts.get("locks"))
        self.marks.append((name, seen(facts, self.watched), line_in(self._file)))
        # Not at "locked": a primitive lock has no expiry yet, and a buyer who gave up would hold it forever.
        self._park(may_leave=name != "locked")

    def _note_locks(self, name: str, locks: object) -> None:
        if isinstance(locks, dict):
            self.lock_names.update(locks)
        if name == "deadlocked":
            self.victim = {"has": self.has, "wants": self.wants}
        if name == "waiting" and isinstance(locks, dict):
            self.wants, self.victim = list(locks), None
        elif name == "locked" and isinstance(locks, dict):
            self.has, self.wants = [*self.has, *locks], []
        elif name in ("deadlocked", "committed"):
            self.has, self.wants = [], []

    def _park(self, *, may_leave: bool = True) -> None:
        if not self._stop.is_set():
            self.state = "parked"
            self._turn.acquire()
        if self._stop.is_set() and may_leave:
            raise Cancelled


class Session:
    """Buyers A and B before the last piece; a context manager that sends both home.

    B's basket has the SKUs in this order, A's the other way round; the first one is counted.

    Example:
        with Session([product.sku], "lost_update") as session:
            session.advance("A")
            print(session.snapshot())
    """

    def __init__(self, skus: Sequence[str], strategy: str) -> None:
        self._skus, self._sku = tuple(skus), skus[0]
        self._initial = look(self._sku).left
        baskets = {"A": tuple(reversed(skus)), "B": tuple(skus)}
        self._lanes = {name: Lane(name, basket, self._sku, strategy) for name, basket in baskets.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for lane in self._lanes.values():
            lane.send_home()
        for lane in self._lanes.values():
            lane.join()

    @property
    def over(self) -> bool:
        """Both have their answer."""
        return all(lane.state == "done" for lane in self._lanes.values())

    def advance(self, who: str) -> None:
        """Tell `A` or `B` to go on; `stop` sends both home."""
        if who == "stop":
            for lane in self._lanes.values():
                lane.send_home()
        else:
            self._lanes[who].advance()

    def snapshot(self) -> dict[str, Any]:
        """Return both lanes, what blocks them, and the committed stock and orders."""
        states = {name: lane.state for name, lane in self._lanes.items()}
        committed = look(self._sku)
        return {
            "initial": self._initial,
            "left": committed.left,
            "sold": committed.sold,
            "products": [self._product(sku) for sku in self._skus],
            "lanes": {name: self._lane(lane, states[name]) for name, lane in self._lanes.items()},
        }

    def _product(self, sku: str) -> dict[str, Any]:
        """Return a product's stock, and the name of its lock once a buyer has come to it."""
        names = [lane.lock_names[sku] for lane in self._lanes.values() if sku in lane.lock_names]
        return {"sku": sku, "left": look(sku).left, "lock": next(iter(names), None)}

    def _lane(self, lane: Lane, state: str) -> dict[str, Any]:
        return {
            "state": state,
            "answer": lane.answer,
            "problem": lane.problem,
            "marks": [list(mark) for mark in lane.marks],
            "blocked": self._blocked(lane) if state == "running" else None,
            "has": list(lane.has),
            "wants": list(lane.wants),
            "victim": lane.victim,
        }

    def _blocked(self, lane: Lane) -> dict[str, str] | None:
        """Return the buyer a lane waits for, by PostgreSQL or by the marks."""
        (other,) = (each for each in self._lanes.values() if each is not lane)
        if other.backend in _blockers(lane.backend):
            return {"by": other.name, "on": "row"}
        if lane.last == "waiting" and other.holds and lane.stands_before_a_lock:
            return {"by": other.name, "on": "lock"}
        return None


def _blockers(backend: int | None) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_blocking_pids(%s)", [backend])
        return list(cursor.fetchone()[0])

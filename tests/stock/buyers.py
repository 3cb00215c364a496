"""Buyers of a race in a process of their own: `python -m tests.stock.buyers '<what, as JSON>'`.

Prints each buyer's answer. With `kill_at`, the process is killed at that step of its first sale, with
whatever it has locked, once the others have begun.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from tests.support.warm import WarmProcess


@dataclass(frozen=True)
class Buyers:
    """What a process does.

    Attributes:
        database: alias. settings: of the test's database. strategy: that leads; "" for sales in a transaction
            of the buyer's own.
        first, buyers: numbers of the buyers, which name their causes. threads: of the process.
        cart: lines that each buys. kill_at: the step, or "".
    """

    database: str
    settings: dict[str, Any]
    strategy: str
    first: int
    buyers: int
    threads: int
    cart: dict[str, int]
    kill_at: str = ""

    def start(self) -> WarmProcess:
        """Start the process; it waits for a line before it buys."""
        command = ["-m", "tests.stock.buyers", json.dumps(asdict(self))]
        return WarmProcess(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def database_settings(alias: str) -> dict[str, Any]:
    """Return what another process needs to reach the test's database."""
    from django.db import connections

    found = connections[alias].settings_dict
    return {key: found[key] for key in ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")}


def race(processes: list[Buyers]) -> list[str]:
    """Let the processes buy at once; return the answers of all buyers that got one."""
    started = [each.start() for each in processes]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    by_death = sorted(zip(processes, started, strict=True), key=lambda pair: not pair[0].kill_at)
    for each, process in by_death:
        _say("go", process)
        if each.kill_at:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
    for each, process in by_death:
        if each.kill_at:
            _say("die", process)
    answers = [line for process in started for line in process.communicate(timeout=100)[0].splitlines()]
    for process, each in zip(started, processes, strict=True):
        assert process.returncode == (-signal.SIGKILL if each.kill_at else 0), process.returncode
    return answers


def _say(word: str, process: WarmProcess) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


def main(what: Buyers) -> None:
    """Buy."""
    import django
    from django.conf import settings

    settings.DATABASES[what.database].update(what.settings)
    django.setup()
    from django.db import connections

    from inventory import Stock

    stock = Stock(database=what.database, **({"strategy": what.strategy} if what.strategy else {}))
    answer("ready")
    sys.stdin.readline()

    def buy(number: int) -> None:
        from inventory import hooks

        try:
            with hooks.installed(KilledAt(what.kill_at)) if what.kill_at else nullcontext():
                answer(_buy(stock, what, f"order-{number}"))
        finally:
            connections[what.database].close()

    with ThreadPoolExecutor(what.threads) as pool:
        list(pool.map(buy, range(what.first, what.first + what.buyers)))


class KilledAt:
    """Kills the process when a step is reached, at the word of the test."""

    lock = threading.Lock()

    def __init__(self, step: str) -> None:
        self.step = step

    def __call__(self, name: str, /, **facts: object) -> None:
        if name == self.step:
            with KilledAt.lock:
                answer("held")
                sys.stdin.readline()
                os.kill(os.getpid(), signal.SIGKILL)


def answer(text: str) -> None:
    """Write a line at once: threads share the output."""
    os.write(1, f"{text}\n".encode())


def _buy(stock: Any, what: Buyers, cause: str) -> str:
    from django.db import DatabaseError, transaction

    from inventory import Busy, DatabaseUnavailable, SoldOut
    from tests.stock.shop.models import Order

    def place(lines: Any) -> Order:
        return Order.objects.using(what.database).create(reference=cause)

    while True:
        try:
            if what.strategy:
                stock.sell(what.cart, cause=cause, write=place)
            else:
                with transaction.atomic(using=what.database):
                    place(())
                    stock.sell(what.cart, cause=cause)
        except SoldOut:
            return "sold out"
        except (Busy, DatabaseUnavailable):
            continue
        except DatabaseError as error:
            if "locked" in str(error) or 1213 in error.args:  # the order's own INSERT met it
                continue
            raise
        return "sold"


if __name__ == "__main__":
    main(Buyers(**json.loads(sys.argv[1])))

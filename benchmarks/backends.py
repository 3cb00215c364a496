"""`python -m benchmarks.backends --json out.json`: the engines behind one API, side by side.

For each: what an uncontended lock costs, how long a handoff between two processes takes, how many sections
a second 2 processes of 16 threads get through, and how long others wait when a holder or a server dies.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, Final

import django
from django.conf import settings
from rich.console import Console
from rich.table import Table

from benchmarks.console import open_console
from benchmarks.engines import ENGINES, PLACE, Engine, Running, started
from benchmarks.stats import jain

SPAWN: Final = multiprocessing.get_context("spawn")
THREADS: Final = 16
SECTION: Final = 0.001
HANDOFFS: Final = 15
DEAD_TTL: Final = 3.0
"""Seconds of the lease of the holder that is killed."""

PATIENCE: Final = 40.0
SETTLED: Final = 0.05
"""Seconds after which another process, asked to wait, surely waits in the queue."""

PAGE: Final = Path(__file__).resolve().parent.parent / "docs/library/reference/backends/index.md"
BEGIN, END = "<!-- measured -->", "<!-- end -->"

Record = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, and write what was asked for."""
    options = _parse(arguments)
    console, begun = open_console(), time.monotonic()
    records, load_before = [], os.getloadavg()
    # Interrupted, it shows what it has.
    with suppress(KeyboardInterrupt), console.status("starting") as status:
        for engine in ENGINES:
            if options.only and engine.name not in options.only:
                continue
            status.update(engine.name)
            records.append(measure(engine, options.seconds))
            console.log(engine.name, "done")
    _show(console, records)
    if options.docs:
        _write_docs(records, load_before[0])
    if options.json:
        found: Record = {"cores": os.cpu_count(), "load_before": load_before, "records": records}
        found["minutes"] = (time.monotonic() - begun) / 60
        options.json.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backends", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument("--docs", action="store_true", help=f"write the table into {PAGE.name}")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each run (default 2)")
    names = [engine.name for engine in ENGINES]
    parser.add_argument("--only", action="append", choices=names, help="measure this engine; may be repeated")
    return parser.parse_args(arguments)


def measure(engine: Engine, seconds: float) -> Record:
    """Return the figures of one engine, or why there are none."""
    record: Record = {"engine": engine.name, "needs": engine.needs}
    if reason := engine.missing():
        return record | {"skipped": reason}
    try:
        with started(engine) as running, _configured(running):
            _make_tables(running)
            return record | _measured(running, seconds, shared=engine.name != "memory")
    except Exception as error:  # one engine's trouble must not cost the others their figures
        return record | {"skipped": f"{type(error).__name__}: {error}"}


def _measured(running: Running, seconds: float, *, shared: bool) -> Record:
    record: Record = {"pair_us": _uncontended(seconds)}
    if shared:
        record["handoff_ms"] = _hand_off(running)
        record |= _throughput(running, seconds)
        record["dead_holder_s"] = _dead_holder(running)
        record["dead_server_s"] = _dead_server(running)
    return record


# --- Django -----------------------------------------------------------------------------------------------


def configure(entry: dict[str, Any], database: dict[str, Any] | None) -> None:
    """Set Django up in this process, with these locks."""
    if database and "mysql" in database["ENGINE"]:
        import pymysql

        pymysql.install_as_MySQLdb()
    if not settings.configured:
        settings.configure(INSTALLED_APPS=["locking"], USE_TZ=True, DATABASES={}, LOCKING={})
        django.setup()
    from django.db import connections

    if database:
        connections.settings[PLACE] = {**connections.settings["default"], **database}
    settings.LOCKING = {"default": dict(entry)}
    from locking.inspection.heartbeat import reporter

    reporter.enabled = False  # it would tell of itself in the middle of a measurement


@contextmanager
def _configured(running: Running) -> Iterator[None]:
    configure(running.entry, running.database)
    from django.db import connections

    from locking.core.handler import locks
    from locking.liveness import registration

    locks.reset()
    registration.leave()
    registration.reset()  # this engine's processes meet in a directory of their own
    try:
        yield
    finally:
        locks.reset()
        if PLACE in connections.settings:
            with suppress(AttributeError):
                connections[PLACE].close()
                del connections[PLACE]
            del connections.settings[PLACE]


def _make_tables(running: Running) -> None:
    if running.database is None:
        return
    from django.db import connections

    from locking.models import LockRow, ProcessRow

    with connections[PLACE].schema_editor() as editor:
        editor.create_model(LockRow)
        editor.create_model(ProcessRow)
    connections[PLACE].close()


# --- what is measured -------------------------------------------------------------------------------------


def _uncontended(seconds: float) -> float:
    """Return the microseconds of an uncontended acquisition and release: the median slice."""
    from locking import get_lock

    lock = get_lock("alone", ttl=30)
    for _ in range(20):
        with lock:
            pass
    slices, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.perf_counter()
        for _ in range(10):
            with lock:
                pass
        slices.append((time.perf_counter() - begun) / 10 * 1e6)
    return median(slices)


class Other:
    """Another process with the same locks, which this one commands."""

    def __init__(self, running: Running) -> None:
        self.pipe, theirs = SPAWN.Pipe()
        arguments = (running.entry, running.database, theirs)
        self.process = SPAWN.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self.pipe.recv()

    def ask(self, task: str, *arguments: Any) -> None:
        """Have it do something."""
        self.pipe.send((task, *arguments))

    def answer(self) -> Any:
        """Return what came of it."""
        if not self.pipe.poll(PATIENCE):
            raise TimeoutError(f"the other process said nothing for {PATIENCE:g} s")
        return self.pipe.recv()

    def __enter__(self) -> Other:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()


def _serve(entry: dict[str, Any], database: dict[str, Any] | None, pipe: Connection) -> None:
    """The other process: take locks and say when."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    configure(entry, database)
    tasks: dict[str, Any] = {"take": _take, "keep": _keep, "crowd": _crowd}
    pipe.send("ready")
    with suppress(EOFError):
        while True:
            task, *arguments = pipe.recv()
            tasks[task](pipe, *arguments)


def _take(pipe: Connection, name: str) -> None:
    from locking import get_lock
    from locking.utils.clock import now

    with get_lock(name, ttl=30, wait=PATIENCE):
        got = now()
    pipe.send(got)


def _keep(pipe: Connection, name: str, ttl: float) -> None:
    from locking import get_lock

    lease = get_lock(name, ttl=ttl).acquire()
    pipe.send("held")
    pipe.recv()
    lease.release()


def _hand_off(running: Running) -> float:
    """Return the milliseconds from a release to the moment at which a waiter elsewhere has the lock."""
    from locking import get_lock
    from locking.utils.clock import now

    delays = []
    with Other(running) as other:
        for _ in range(HANDOFFS):
            with get_lock("baton", ttl=30, wait=PATIENCE):
                other.ask("take", "baton")
                time.sleep(SETTLED)
                let_go = now()
            delays.append(float(other.answer() - let_go) * 1000)
    return median(delays)


def _crowd(pipe: Connection, seconds: float, start: float) -> None:
    """Sixteen threads want the lock; each counts the sections that it gets."""
    from locking import LockError, get_lock
    from locking.utils.clock import now

    counts, errors = [0] * THREADS, [0] * THREADS
    lock = get_lock("crowd", ttl=30, wait=PATIENCE)

    def work(number: int) -> None:
        while now() < start + seconds:
            try:
                with lock:
                    inside = now()
                    time.sleep(SECTION)
                    counts[number] += start <= inside < start + seconds
            except LockError:
                errors[number] += 1

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.send((counts, sum(errors)))


def _throughput(running: Running, seconds: float) -> Record:
    from locking.utils.clock import now

    with Other(running) as one, Other(running) as two:
        start = now() + 0.5  # everyone has connections by then
        for other in (one, two):
            other.ask("crowd", seconds, start)
        answers = [one.answer(), two.answer()]
    counts = [count for shares, _ in answers for count in shares]
    return {
        "sections_per_second": sum(counts) / seconds,
        "jain": jain(counts),
        "errors": sum(errors for _, errors in answers),
    }


def _dead_holder(running: Running) -> float:
    """Return the seconds from the death of a holder, right after it began, to the next holder."""
    from locking import get_lock
    from locking.utils.clock import now

    with Other(running) as other:
        other.ask("keep", "orphan", DEAD_TTL)
        other.answer()
        other.process.kill()
        died = now()
        get_lock("orphan", ttl=30).acquire(wait=PATIENCE).release()
        return now() - died


def _dead_server(running: Running) -> float | None:
    """Return the seconds from the death of a server to the next hold of a lock that was on it."""
    from locking import LockError, get_lock
    from locking.utils.clock import now

    if running.kill is None:
        return None
    name = running.name
    get_lock(name, ttl=30).acquire(wait=PATIENCE).release()
    running.kill()
    died = now()
    while now() - died < PATIENCE:
        with suppress(LockError):
            get_lock(name, ttl=30).acquire(wait=1.0).release()
            return now() - died
        time.sleep(0.01)
    return float("inf")


# --- the table --------------------------------------------------------------------------------------------

COLUMNS: Final = {
    "engine": "engine",
    "pair_us": "uncontended, µs",
    "handoff_ms": "handoff, ms",
    "sections_per_second": "2×16, sections/s",
    "jain": "Jain",
    "dead_holder_s": f"holder killed (ttl {DEAD_TTL:g} s), s",
    "dead_server_s": "server killed, s",
    "needs": "needs",
}


def _show(console: Console, records: Sequence[Record]) -> None:
    table = Table(*COLUMNS.values())
    for record in records:
        if "skipped" in record:
            table.add_row(record["engine"], f"skipped: {record['skipped']}")
        else:
            table.add_row(*(_shown(column, record) for column in COLUMNS))
    console.print(table)


def _write_docs(records: Sequence[Record], load: float) -> None:
    """Put the table between the marks of the docs' page."""
    rows = [list(COLUMNS.values()), ["---"] + ["---:"] * (len(COLUMNS) - 2) + ["---"]]
    for record in records:
        if "skipped" not in record:
            rows.append([_shown(column, record) for column in COLUMNS])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    note = f"{os.cpu_count()} cores, load before the run {load:.1f}."
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{note}\n\n{END}{rest.partition(END)[2]}")


def _shown(column: str, record: Record) -> str:
    figure = record.get(column)
    if figure is None:
        return "until it is back" if column in record else "–"
    digits = {"pair_us": 0, "sections_per_second": 0, "handoff_ms": 2, "jain": 2}.get(column, 1)
    return figure if isinstance(figure, str) else f"{figure:.{digits}f}"


if __name__ == "__main__":
    main()

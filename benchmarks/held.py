"""`python -m benchmarks.held`: what the list of held locks costs those who lock, and those who read it.

Three measurements on one private Redis:

- *cost*: acquire and release with everything, without the index, and without the index and what is noted for
  the list (place in the code, figures); slices of some milliseconds in turns, as in `uncontended`.
- *page*: the admin's list over `--locks` held locks, through the whole of Django (session, user, permissions,
  templates), on SQLite.
- *reading*: the backend's own `held` (a page of 50) and `count_held`, without Django.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

import django
from django.conf import settings
from rich.table import Table

from benchmarks.awake import cores_awake
from benchmarks.circumstances import describe
from benchmarks.console import open_console
from benchmarks.server import Server, private_redis

WITH, WITHOUT, BARE = "everything", "no index", "no index, nothing noted"
LOCKS: Final = 50_000
DESCRIBED: Final = 500
"""Locks held by leases of this process, with all details: the oldest, and so on the first pages."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write what was asked for."""
    options = _parse(arguments)
    with private_redis() as server, tempfile.TemporaryDirectory() as folder:
        _configure(server.url, Path(folder))
        results: dict[str, Any] = {"circumstances": describe(server, [])}
        with cores_awake():
            results["cost"] = measure_cost(server, options.rounds)
        results["page"] = measure_page(server, options.locks)
    _show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.held", description=__doc__)
    parser.add_argument("--rounds", type=int, default=400, help="rounds of the cost")
    parser.add_argument("--locks", type=int, default=LOCKS, help="locks held while the list is read")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    return parser.parse_args(arguments)


def _configure(url: str, folder: Path) -> None:
    """Set up a Django with an admin, and the locks on the private server."""
    apps = ("admin", "auth", "contenttypes", "sessions", "messages", "staticfiles")
    middleware = (
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    )
    processors = ("django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
                  "django.contrib.messages.context_processors.messages")  # fmt: skip
    templates = {"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}
    settings.configure(
        INSTALLED_APPS=[*(f"django.contrib.{app}" for app in apps), "locking"],
        MIDDLEWARE=middleware,
        TEMPLATES=[{**templates, "OPTIONS": {"context_processors": processors}}],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "db.sqlite3")}},
        LOCKING={"default": {"LOCATION": url}},
        ROOT_URLCONF="benchmarks.held_urls",
        SECRET_KEY="for-the-benchmark-only",  # noqa: S106 - it guards nothing
        ALLOWED_HOSTS=["*"],
        STATIC_URL="static/",
        USE_TZ=True,
    )
    django.setup()


# what it costs to be listed


def measure_cost(server: Server, rounds: int, pairs: int = 20) -> dict[str, Any]:
    """Return µs a pair of each variant, and the ratios of everything to the others, taken round by round."""
    get_lock = import_module("locking").get_lock
    lock = get_lock("bench:same", ttl=30.0)
    variants = {WITH: _as_it_is, WITHOUT: _without_index, BARE: _bare}
    times: dict[str, list[float]] = {name: [] for name in variants}
    gc.freeze()
    for round_ in range(rounds + 3):
        for name in random.sample(list(variants), len(variants)):
            with variants[name]():
                spent = _time_pairs(lock, pairs)
            if round_ >= 3:  # the first rounds send scripts and fill caches
                times[name].append(spent)
    server.clear()
    ratios = {
        name: [a / b for a, b in zip(times[WITH], times[name], strict=True)] for name in (WITHOUT, BARE)
    }
    return {
        "us": {name: median(each) for name, each in times.items()},
        "ratio": {name: quantiles(each, n=4) for name, each in ratios.items()},
    }


def _time_pairs(lock: Any, pairs: int) -> float:
    begun = time.perf_counter()
    for _ in range(pairs):
        with lock:
            pass
    return (time.perf_counter() - begun) / pairs * 1e6


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield


@contextmanager
def _without_index() -> Iterator[None]:
    """Scripts without the lines that touch the index."""
    scripts: Any = import_module("locking.backends.redis.scripts")
    kept = scripts.ACQUIRE, scripts.RELEASE
    scripts.ACQUIRE, scripts.RELEASE = _stripped()
    try:
        yield
    finally:
        scripts.ACQUIRE, scripts.RELEASE = kept


STRIPPED: list[Any] = []


def _stripped() -> Any:
    """Return the scripts without the index; made once."""
    scripts: Any = import_module("locking.backends.redis.scripts")
    if not STRIPPED:
        read = scripts._read
        scripts._read = lambda name: b"\n".join(
            line for line in read(name).split(b"\n") if b"', KEYS[4], " not in line
        )
        STRIPPED.append((scripts.Script(*scripts.ACQUIRE.names), scripts.Script(*scripts.RELEASE.names)))
        scripts._read = read
    return STRIPPED[0]


class _Nowhere:
    """Takes notes and keeps none."""

    def append(self, note: object) -> None:
        """Do nothing."""


@contextmanager
def _bare() -> Iterator[None]:
    lease: Any = import_module("locking.core.lease")
    heartbeat: Any = import_module("locking.inspection.heartbeat")
    before = lease.caller_site, heartbeat.SAMPLES
    lease.caller_site = lambda: None
    heartbeat.SAMPLES = _Nowhere()
    try:
        with _without_index():
            yield
    finally:
        lease.caller_site, heartbeat.SAMPLES = before


# what it costs to read the list


def measure_page(server: Server, locks: int) -> dict[str, Any]:
    """Return milliseconds of the admin's pages and of the backend's list, over `locks` held locks."""
    client = _signed_in()
    kept = _hold(locks)
    backend = import_module("locking.core.handler").locks["default"]
    first, middle = "/admin/locking/heldlock/", f"/admin/locking/heldlock/?p={locks // 100}"
    steps: dict[str, Callable[[], Any]] = {
        "for comparison: the admin's index": lambda: client.get("/admin/"),
        "admin, first page": lambda: client.get(first),
        "admin, middle page": lambda: client.get(middle),
        "admin, prefix that ten match": lambda: client.get(f"{first}?prefix=bench:4999"),
        "admin, held longer than 1 minute": lambda: client.get(f"{first}?older_than=60"),
        "JSON, first page": lambda: client.get(f"{first}json/"),
        "held(limit=50)": lambda: backend.held(limit=50),
        "count_held()": backend.count_held,
    }
    assert f"{locks} held locks" in client.get(first).content.decode()
    figures = {name: _milliseconds(step) for name, step in steps.items()}
    memory = (server.client.memory_usage("holdfast_held:", samples=0) or 0) / locks
    del kept
    return {"locks": locks, "ms": figures, "index_bytes_a_lock": memory}


def _signed_in() -> Any:
    import_module("django.core.management").call_command("migrate", verbosity=0)
    user = import_module("django.contrib.auth").get_user_model()
    client = import_module("django.test").Client()
    client.force_login(user.objects.create_superuser("admin"))
    return client


def _hold(locks: int) -> list[Any]:
    """Hold so many: the first by leases that this process tells of, the rest by the backend alone."""
    get_lock = import_module("locking").get_lock
    backend = import_module("locking.core.handler").locks["default"]
    new_owner = import_module("locking.utils.ownership").new_owner
    presence = import_module("locking.inspection.heartbeat")
    leases = [get_lock(f"bench:{number}", ttl=3600.0).acquire() for number in range(min(DESCRIBED, locks))]
    for number in range(len(leases), locks):
        backend.try_acquire(f"bench:{number}", new_owner(), 3600.0)
    time.sleep(presence.PUBLISH_AFTER)
    presence.reporter.beat()
    return leases


def _milliseconds(step: Callable[[], Any], times: int = 30) -> list[float]:
    spent = []
    for _ in range(times + 3):
        cpu, begun = time.process_time(), time.perf_counter()
        step()
        spent.append(((time.perf_counter() - begun) * 1000, (time.process_time() - cpu) * 1000))
    walls, cpus = zip(*spent[3:], strict=True)
    return [*quantiles(walls, n=4), median(cpus)]


def _show(results: dict[str, Any]) -> None:
    console = open_console()
    cost = Table("acquire and release", "µs", "everything ÷ this")
    for name, spent in results["cost"]["us"].items():
        cost.add_row(name, f"{spent:.1f}", _quartiles(results["cost"]["ratio"].get(name), 3))
    console.print(cost)
    page = results["page"]
    table = Table(f"{page['locks']:,} locks held", "ms", "ms of this process's CPU")
    for name, (*walls, cpu) in page["ms"].items():
        table.add_row(name, _quartiles(walls, 1), f"{cpu:.1f}")
    table.add_row("index, bytes per lock", f"{page['index_bytes_a_lock']:.0f}")
    console.print(table)


def _quartiles(values: Sequence[float] | None, digits: int) -> str:
    if values is None:
        return ""
    low, middle, high = values
    return f"{middle:.{digits}f} [{low:.{digits}f}–{high:.{digits}f}]"


if __name__ == "__main__":
    main()

"""A client on a host: runs operations through `locking`, and logs each call, what it did, and its return.

python -m histories.client CONFIG HOST SEED            until its standard input ends
python -m histories.client CONFIG migrate              make the tables, and end
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import django
from django.conf import settings

from histories.systems.base import LEASE, Abilities

WAIT: Final = 1.5
"""Seconds that an acquisition waits: shorter than a lease, so that clients ask again while one runs out."""

TABLE: Final = "CREATE TABLE IF NOT EXISTS guarded (name text PRIMARY KEY, value bigint NOT NULL)"
READ: Final = "SELECT value FROM guarded WHERE name = %s"
WRITE: Final = "UPDATE guarded SET value = %s WHERE name = %s"
SECTIONS: Final = ("bare", "confirmed", "fenced")


@dataclass(frozen=True)
class Config:
    """What all clients of a cell have in common.

    Attributes:
        locking: the alias of LOCKING.
        databases: DATABASES.
        abilities: of the system.
        cell: what the names of this cell's locks end with.
        log: the folder of the logs.
        wrong: a mistake to make, which the checker has to find: `owner`, `lease`, `lock` or `fence`.
    """

    locking: dict[str, Any]
    databases: dict[str, dict[str, Any]]
    abilities: Abilities
    cell: str
    log: str
    wrong: str = ""

    def write(self, path: Path) -> None:
        """Write it for the clients' command."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: str) -> Config:
        """Return what `write` has written."""
        given = json.loads(Path(path).read_text())
        return cls(**given | {"abilities": Abilities(**given["abilities"])})

    def setup(self) -> None:
        """Set up Django."""
        settings.configure(
            DATABASES=self.databases,
            LOCKING={"default": self.locking},
            INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "locking"],
            DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
            SECRET_KEY="histories",  # noqa: S106 - it signs nothing
            USE_TZ=True,
        )
        django.setup()


class Log:
    """One JSON object per line and event; each line is one write, so a killed client leaves whole lines."""

    def __init__(self, path: Path, client: str) -> None:
        self.file = path.open("ab", buffering=0)
        self.client, self.count, self.lock = client, 0, threading.Lock()

    def write(self, operation: str, event: str, **facts: object) -> None:
        """Write an event: call, wrote (before the UPDATE), ok, fail or unknown."""
        line = {"at": time.monotonic_ns(), "operation": operation, "event": event, **facts}
        self.file.write(json.dumps(line).encode() + b"\n")

    def call(self, action: str, key: str, **facts: object) -> str:
        """Write an invocation and return the operation's name."""
        with self.lock:
            self.count += 1
            operation = f"{self.client}/{os.getpid()}/{self.count}"
        self.write(operation, "call", action=action, key=key, client=self.client, **facts)
        return operation


@dataclass
class Client:
    """The threads of one process, and what they share."""

    config: Config
    host: str
    seed: int
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.log = Log(Path(self.config.log) / f"{self.host}.jsonl", self.host)
        self.chance = random.Random(self.seed)  # noqa: S311 - a test's

    def threads(self) -> Iterator[Callable[[], None]]:
        """Return what each thread repeats."""
        able = self.config.abilities
        if able.in_transaction:
            yield lambda: self.section("confirmed")
            return
        yield lambda: self.hold("lock")
        yield lambda: self.hold("renewed")
        for how in SECTIONS if able.fenced else SECTIONS[:2]:
            yield lambda how=how: self.section(how)  # type: ignore[misc]
        if able.semaphore:
            yield lambda: self.hold("semaphore")
        if able.read_write:
            yield lambda: self.hold(self.chance.choice(["read", "write"]))
        if able.fenced and able.lists and self.host == "c4":
            yield self.force_release

    def run(self) -> None:
        """Run all threads until standard input ends."""
        for number, step in enumerate(self.threads()):
            threading.Thread(target=self.repeat, args=(step,), name=f"step-{number}").start()
        sys.stdin.read()
        self.stop.set()

    def repeat(self, step: Callable[[], None]) -> None:
        """Run `step` until the client stops; what it raised is in the log already."""
        from django.db import Error, connections

        from locking import LockError

        while not self.stop.is_set():
            try:
                step()
            except LockError:
                pass
            except Error:
                connections.close_all()
            except Exception:
                logging.exception("a step failed")
            self.rest(0.02, 0.15)
        connections.close_all()

    def rest(self, least: float, most: float) -> None:
        """Do nothing for a moment."""
        time.sleep(self.chance.uniform(least, most))

    def do(
        self, action: str, key: str, what: Callable[[], dict[str, object] | None], **facts: object
    ) -> None:
        """Log a call, run it, and log how it ended; `fail` had no effect, `unknown` may have had one."""
        from locking import LockLost, LockNotAcquired, LockNotOwned

        operation = self.log.call(action, key, **facts)
        try:
            found = what()
        except Exception as error:
            certain = isinstance(error, LockNotAcquired | LockLost | LockNotOwned)
            self.log.write(operation, "fail" if certain else "unknown", error=type(error).__name__)
            raise
        self.log.write(operation, "ok", **(found or {}))

    # a hold of a lock, a semaphore's permit, or one side of a read-write lock

    def hold(self, kind: str) -> None:
        """Acquire, look whether it is held, extend now and then, look again, release.

        A `renewed` lock is held beyond its first lease, which the watchdog renews.
        """
        from locking import Lease, LockError, get_lock, get_read_lock, get_semaphore, get_write_lock

        side = kind in ("read", "write")
        key = f"{'read_write' if side else kind}-{self.config.cell}"
        lock = {
            "lock": lambda: get_lock(key, wait=WAIT, fenced=self.config.abilities.fenced),
            "renewed": lambda: get_lock(key, wait=WAIT),
            "semaphore": lambda: get_semaphore(key, permits=2, wait=WAIT),
            "read": lambda: get_read_lock(key, wait=WAIT),
            "write": lambda: get_write_lock(key, wait=WAIT),
        }[kind]()
        taken: list[Lease] = []

        def acquire() -> dict[str, object]:
            taken.append(lock.acquire())
            return {"owner": taken[0].owner, "token": taken[0].leases[0].token or 0}

        facts = {"mode": kind} if side else {}
        self.do("acquire", key, acquire, **facts)
        lease = taken[0]
        facts["owner"] = lease.owner
        try:
            looks, pause = ((8, 12), (0.3, 0.5)) if kind == "renewed" else ((2, 4), (0.01, 0.1))
            for _ in range(self.chance.randint(*looks)):
                if self.stop.is_set():
                    break
                self.rest(*pause)
                self.do("held", key, lambda: self.look(lease), **facts)
                if kind != "renewed" and self.chance.random() < 0.2:
                    with suppress(LockError):  # one that gets no answer leaves the lease as it was
                        self.do("held", key, lambda: lease.extend(LEASE), **facts)
        finally:
            self.do("release", key, lambda: self.release(lease), **facts)

    def look(self, lease: Any) -> None:
        """Raise unless the lease is held; a wrong lock's holder believes in it forever."""
        if self.config.wrong != "lease":
            lease.ensure_held()

    def release(self, lease: Any) -> None:
        """Release; a wrong lock releases any holder. An outage is retried later, and isn't confirmed."""
        from locking import BackendUnavailable, State
        from locking.backends.capabilities import releaser_of
        from locking.core.handler import locks

        if self.config.wrong == "owner":
            engine = releaser_of(locks["default"], "lock")
            if (holder := engine.holder(lease.key)) is not None:
                engine.force_release(lease.key, holder.owner)
        with lease:
            pass
        if lease.state is not State.RELEASED:
            raise BackendUnavailable("the release isn't confirmed")

    # the guarded register

    @contextmanager
    def guarded(self, how: str, key: str) -> Iterator[Any]:
        """Enter a transaction under the lock: beside it, locked, or locked and fenced; or by mistake."""
        from django.db import transaction

        from locking import get_lock, locked_transaction

        if self.config.wrong == "lock":
            with transaction.atomic():
                yield None
        elif how == "bare" or (how == "fenced" and self.config.wrong == "fence"):
            with get_lock(key, wait=WAIT, fenced=how == "fenced") as lease, transaction.atomic():
                yield lease
        else:
            with locked_transaction(key, wait=WAIT, fenced=how == "fenced") as lease:
                yield lease

    def section(self, how: str) -> None:
        """Read the register and write one more, in a transaction under the lock."""
        from django.db import Error, connection, transaction

        key, operation, reached = f"{how}-{self.config.cell}", "", "call"

        def commit() -> None:
            nonlocal reached
            reached = "ok"
            self.log.write(operation, "ok")

        try:
            with self.guarded(how, key) as lease, connection.cursor() as cursor:
                operation = self.log.call("section", key)
                transaction.on_commit(commit)
                cursor.execute(READ, [key])
                value = cursor.fetchone()[0]
                self.rest(0.02, 0.15)
                reached = "wrote"
                token = lease.leases[0].token if lease and how == "fenced" else 0
                self.log.write(
                    operation, "wrote", value=value, token=token, owner=lease.owner if lease else ""
                )
                cursor.execute(WRITE, [value + 1, key])
        except Exception as error:
            if not operation:
                self.log.write("", "refused", key=key, client=self.host, error=type(error).__name__)
            elif reached != "ok":
                by_database = isinstance(error, Error) or isinstance(error.__cause__, Error)
                certain = reached == "call" or not by_database
                self.log.write(operation, "fail" if certain else "unknown", error=type(error).__name__)
            raise

    def force_release(self) -> None:
        """Break a lock, most often that of the fenced register, as an operator would."""
        from locking.inspection import admin_actions
        from locking.inspection.held import holds_of

        self.stop.wait(self.chance.uniform(1, 3))
        key = f"{self.chance.choice(['fenced', 'fenced', 'lock', 'renewed'])}-{self.config.cell}"
        for hold in holds_of(key):

            def break_it(hold: Any = hold) -> dict[str, object]:
                return {"done": admin_actions.force_release(hold, reason="a drill").done}

            self.do("forbid", key, break_it, owner=hold.owner, token=hold.token or 0)


def migrate(config: Config) -> None:
    """Make the tables of `locking` and the guarded registers, of which each cell has its own rows."""
    from django.core.management import call_command
    from django.db import connection

    for alias in config.databases:
        call_command("migrate", database=alias, verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute(TABLE)


def main(arguments: Sequence[str]) -> None:
    """Run the command of the module's docstring."""
    config = Config.read(arguments[0])
    config.setup()
    if arguments[1] == "migrate":
        migrate(config)
    else:
        Client(config, arguments[1], int(arguments[2])).run()


if __name__ == "__main__":
    main(sys.argv[1:])

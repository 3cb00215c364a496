"""PostgreSQL: a primary and a standby that is promoted; and the judge's own, which nothing harms."""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import Any, ClassVar

import psycopg

from histories.hosts import address
from histories.servers import ACCOUNT, Server, until
from histories.systems.base import LEASE, REQUEST, Abilities, System

SETTINGS = {
    "listen_addresses": "*",
    "unix_socket_directories": "",
    "max_connections": 120,
    "shared_buffers": "16MB",
    "wal_keep_size": "64MB",
    "wal_log_hints": "on",
    "hot_standby": "on",
    "wal_receiver_timeout": "3s",
    "wal_sender_timeout": "3s",
    "fsync": "off",  # the machine itself never loses its memory here, only processes die
    "jit": "off",
}


def entry(*hosts: str) -> dict[str, Any]:
    """Return the entry of DATABASES for the one among the hosts that takes writes."""
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "postgres",
        "USER": ACCOUNT,
        "HOST": ",".join(map(address, hosts)),
        "PORT": "5432",
        "OPTIONS": {
            "target_session_attrs": "read-write",
            "connect_timeout": 2,  # libpq's least
            "tcp_user_timeout": 3000,
            "keepalives_idle": 1,
            "keepalives_interval": 1,
            "keepalives_count": 3,
        },
    }


class PostgresServer(Server):
    """One cluster of PostgreSQL."""

    def __init__(self, host: str, **settings: object) -> None:
        super().__init__(host, f"postgres-{host}", megabytes=400)
        self.data = self.disk.path / "data"
        self.settings = SETTINGS | settings
        self.command = self.as_account(["postgres", "-D", str(self.data)])

    def create(self) -> None:
        """Make an empty cluster and start it."""
        options = ["--username", ACCOUNT, "--auth=trust", "--encoding=UTF8", "--locale=C", "--wal-segsize=1"]
        self.run(self.as_account(["initdb", "-D", str(self.data), "--no-sync", *options]))
        with (self.data / "postgresql.conf").open("a") as config:
            config.writelines(f"{name} = '{value}'\n" for name, value in self.settings.items())
        with (self.data / "pg_hba.conf").open("a") as rights:
            rights.write("host all all 0.0.0.0/0 trust\nhost replication all 0.0.0.0/0 trust\n")
        self.start()
        until(lambda: self.ask("SELECT 1"), f"{self.name} answers")

    def follow(self, primary: PostgresServer) -> None:
        """Become a standby: copy the primary's data and stream from it."""
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)
        source = ["-h", address(primary.host), "-U", ACCOUNT, "-D", str(self.data)]
        basebackup = shutil.which("pg_basebackup") or "/usr/lib/postgresql/15/bin/pg_basebackup"
        self.run(self.as_account([basebackup, *source, "-R", "-c", "fast", "--no-sync"]))
        self.start()
        until(lambda: self.ask("SELECT pg_is_in_recovery()"), f"{self.name} follows")

    def ask(self, statement: str) -> Any:
        """Return the first column of the answer's first row."""
        place = f"host={address(self.host)} port=5432 user={ACCOUNT} dbname=postgres connect_timeout=2"
        with psycopg.connect(place, autocommit=True) as connection:
            row = connection.execute(statement.encode()).fetchone()
            return None if row is None else row[0]


class Postgres(System):
    """A primary and a standby; the runner promotes the standby, as a failover manager would."""

    members: list[PostgresServer]  # type: ignore[assignment]
    backend: ClassVar[str]
    replication: ClassVar[dict[str, object]] = {}
    """Settings of the primary beyond the asynchronous default."""

    def start(self) -> None:
        """See `System`."""
        primary = PostgresServer("n1", **self.replication)
        standby = PostgresServer("n2", **self.replication)
        self.members = [primary, standby]
        primary.create()
        standby.follow(primary)
        until(self.is_whole, "a standby that streams")

    def locking(self) -> dict[str, Any]:
        """See `System`."""
        return {
            "BACKEND": self.backend,
            "OPTIONS": {"using": "locks", "timeout": REQUEST},
            "WATCHDOG_TTL": LEASE,
        }

    def databases(self) -> dict[str, dict[str, Any]]:
        """See `System`."""
        return {"locks": entry("n1", "n2")}

    def _is_primary(self, member: PostgresServer) -> bool:
        with suppress(psycopg.Error):
            return member.lives and not member.ask("SELECT pg_is_in_recovery()")
        return False

    def leader(self) -> PostgresServer:
        """Return the primary that was promoted last, or the only one."""
        primaries = [member for member in self.members if self._is_primary(member)]
        timeline = "SELECT timeline_id FROM pg_control_checkpoint()"
        return max(primaries, key=lambda member: int(member.ask(timeline)), default=self.members[0])

    def promote(self, lost: Server) -> None:
        """See `System`: the standby is made the primary, whatever becomes of the old one."""
        standby = next(member for member in self.members if member is not lost)
        with suppress(psycopg.Error):
            standby.ask("SELECT pg_promote(wait => true, wait_seconds => 10)")
            standby.ask("CHECKPOINT")  # the control file says the new timeline from then on

    def is_whole(self) -> bool:
        """Whether one is the primary and the other streams from it."""
        count = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
        primaries = [member for member in self.members if self._is_primary(member)]
        return len(primaries) == 1 and primaries[0].ask(count) == 1

    def restore(self) -> None:
        """See `System`: after a promotion the old primary is copied afresh from the new one."""
        for member in self.members:
            member.thaw()
            member.disk.clear()
            if not member.lives:
                member.start()
        for member in self.members:
            until(lambda one=member: one.ask("SELECT 1"), f"{member.name} answers")  # type: ignore[misc]
        if sum(map(self._is_primary, self.members)) > 1:
            leader = self.leader()
            next(member for member in self.members if member is not leader).follow(leader)
        super().restore()


class Advisory(Postgres):
    """Session locks."""

    name = "PostgreSQL advisory"
    backend = "locking.backends.database.AdvisoryLockBackend"
    abilities = Abilities(fenced=False, semaphore=False, lists=False)


class Database(Postgres):
    """A row for each lock."""

    name = "PostgreSQL rows"
    backend = "locking.backends.database.DatabaseBackend"
    abilities = Abilities(semaphore=False, read_write=False)


class RowLock(Postgres):
    """`SELECT … FOR UPDATE` beside what it protects; the standby has every COMMIT before it is answered."""

    name = "PostgreSQL row locks"
    backend = "locking.backends.database.RowLockBackend"
    replication: ClassVar[dict[str, object]] = {
        "synchronous_standby_names": "*",
        "idle_in_transaction_session_timeout": f"{LEASE:g}s",
    }
    abilities = Abilities(fenced=False, semaphore=False, read_write=False, lists=False, in_transaction=True)
    promises = ("confirmed",)

    def databases(self) -> dict[str, dict[str, Any]]:
        """See `System`."""
        return {"default": entry("n1", "n2")}

    def locking(self) -> dict[str, Any]:
        """See `System`."""
        return {"BACKEND": self.backend, "OPTIONS": {"timeout": REQUEST}}

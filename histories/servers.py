"""Server processes on hosts: started, frozen, killed, their disks filled and their clocks moved."""

from __future__ import annotations

import os
import pwd
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from histories.hosts import HOME, command_on

T = TypeVar("T")

SHIM_SOURCE: Final = Path(__file__).parent.parent / "tests/locking/support/clock_shim.c"
ACCOUNT: Final = "nobody"  # PostgreSQL refuses to run as root


class NotReady(Exception):
    """A condition didn't come true in time."""


def until(condition: Callable[[], T], what: str, within: float = 60.0) -> T:
    """Return what `condition` returns as soon as that is true; an error of a connection means not yet."""
    deadline = time.monotonic() + within
    trouble: Exception | None = None
    while time.monotonic() < deadline:
        try:
            if found := condition():
                return found
        except Exception as error:  # each client has a tree of errors of its own
            trouble = error
        time.sleep(0.05)
    raise NotReady(f"{what}: not within {within:g} s ({trouble!r})")


def build_shim() -> Path:
    """Compile the library that shows a process another wall clock."""
    library = HOME / "clock.so"
    if not library.exists():
        HOME.mkdir(parents=True, exist_ok=True)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(SHIM_SOURCE), "-ldl"], check=True)
        library.chmod(0o755)
    return library


def clock_of(host: str) -> Path:
    """Return the file that holds how many seconds the wall clock of a host is off."""
    file = HOME / f"{host}.clock"
    if not file.exists():
        file.write_bytes(struct.pack("q", 0))
        file.chmod(0o644)
    return file


def set_clock(host: str, seconds: int) -> None:
    """Move the wall clock of a host so far from the machine's; its processes see that at once."""
    with clock_of(host).open("r+b") as file:
        file.write(struct.pack("q", seconds))


def with_clock(host: str, command: Sequence[str]) -> list[str]:
    """Return the command for a program on `host` that sees the host's own wall clock."""
    shim = build_shim()
    seen = ["env", f"LD_PRELOAD={shim}", f"CLOCK_OFFSET_FILE={clock_of(host)}"]
    return command_on(host, [*seen, *command])


class Disk:
    """A small disk of a server's own, in memory."""

    def __init__(self, name: str, megabytes: int) -> None:
        self.path = HOME / "disks" / name
        self.path.mkdir(parents=True)
        size = f"size={megabytes}m,mode=0777"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "holdfast", str(self.path)], check=True)

    def fill(self) -> None:
        """Leave no byte free."""
        with suppress(OSError), (self.path / "ballast").open("wb", buffering=0) as ballast:
            while ballast.write(bytes(1 << 16)):
                pass

    def clear(self) -> None:
        """Give the space back."""
        (self.path / "ballast").unlink(missing_ok=True)

    def remove(self) -> None:
        """Unmount it."""
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)
        self.path.rmdir()


def _children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


class Server:
    """A process on a host, with a disk of its own, on which it logs and works.

    Args:
        host: where it runs.
        name: unique among the servers that run.
        megabytes: size of its disk.
    """

    def __init__(self, host: str, name: str, megabytes: int = 48) -> None:
        self.host, self.name = host, name
        self.disk = Disk(name, megabytes)
        self.log = HOME / f"{name}.log"
        self.command: Sequence[str] = ()
        self.process: subprocess.Popen[bytes] | None = None

    def as_account(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs as an account without rights."""
        account = pwd.getpwnam(ACCOUNT)
        identity = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
        return ["setpriv", *identity, "--pdeathsig", "KILL", *command]

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start the process, or start it again on the same data."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                with_clock(self.host, self.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.disk.path,
                env={**os.environ, **(environment or {})},
            )

    def run(self, command: Sequence[str]) -> None:
        """Run a program on the host and wait for its end; raise if it fails."""
        with self.log.open("ab") as log:
            subprocess.run(
                with_clock(self.host, command), check=True, stdout=log, stderr=log, cwd=self.disk.path
            )

    @property
    def lives(self) -> bool:
        """Whether the process runs, or is frozen."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """End it at once, frozen or not."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def freeze(self) -> None:
        """Stop it and its children, as PostgreSQL has one per connection; its sockets stay open."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, what: signal.Signals) -> None:
        if self.process is not None and self.lives:
            self.process.send_signal(what)
            for child in _children(self.process.pid):
                with suppress(ProcessLookupError):
                    os.kill(child, what)

    def remove(self) -> None:
        """End it and delete its data."""
        self.kill()
        self.disk.remove()

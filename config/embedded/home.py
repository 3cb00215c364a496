"""Where a checkout's embedded servers live.

The home is `.run/home`. Where that can't work (a path too long for a socket, characters that break a shell, a
folder that the servers' account may not enter) it is `/var/tmp/holdfast-<account>-<checkout>` instead. No
permission of a parent folder is ever widened.
"""

import fcntl
import hashlib
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from config.embedded.account import Account, can_enter, can_run, is_root, own, owner_of, server_account
from config.embedded.errors import EmbeddedError, spoken

CHECKOUT = Path(__file__).resolve().parent.parent.parent
SOCKET_BYTES = 103  # the longest path of a socket: 107 on Linux, 103 on macOS
LONGEST_SOCKET = "/.s.PGSQL.5432"
AWKWARD = re.compile(
    r"[\"'$`\\,\x00-\x1f\x7f]"
)  # pg_ctl hands paths to a shell, libpq splits hosts at commas
LOCK_SECONDS = 120.0  # longer than a start may take


class Home:
    """Where one checkout's servers live, and as whom they run.

    Args:
        checkout: the project's root folder; each has its own servers.

    Raises:
        EmbeddedError: there is no account that could run them.
    """

    def __init__(self, checkout: Path = CHECKOUT) -> None:
        self.run = checkout / ".run"
        self.account = server_account(checkout)
        self.owner = owner_of(checkout)
        key = hashlib.sha256(os.fsencode(checkout)).hexdigest()[:12]
        self.inside = self.run / "home"
        self.outside = Path("/var/tmp", f"holdfast-{self.account.pw_name}-{key}")  # noqa: S108  see private_folder
        self.path = self.inside

    def settle(self) -> None:
        """Make `.run`, choose the home and make that."""
        with suppress(FileExistsError):
            self.run.mkdir(mode=0o755)
            self.hand_over(self.run)
        self.path = self.inside if self.suits() else self.outside
        private_folder(self.path, self.account)

    def hand_over(self, path: Path) -> None:
        """What root makes in an ordinary user's checkout belongs to that user."""
        if self.owner:
            own(path, self.owner)

    def suits(self) -> bool:
        """Whether the servers can live inside the checkout."""
        raw = os.fsencode(self.inside)
        if len(raw) + len(LONGEST_SOCKET) > SOCKET_BYTES or AWKWARD.search(str(self.inside)):
            return False
        return is_utf8(raw) and can_enter(self.account, self.run)

    def folder(self, name: str) -> Path:
        """A private folder of the home."""
        return private_folder(self.path / name, self.account)

    def write(self, path: Path, lines: dict[str, str], between: str) -> None:
        """Write settings, one a line, into a file that belongs to the servers' account."""
        path.write_text("".join(f"{name}{between}{value}\n" for name, value in lines.items()))
        own(path, self.account)

    def usable(self, binary: Path, base: Path, needs: Sequence[str]) -> Path:
        """`binary`, or its copy in the home where the account can't run it.

        Args:
            binary: the program, somewhere below `base`.
            base: the folder that its paths to its own libraries start from.
            needs: what must be copied along, below `base`; absent ones are not needed here.
        """
        if can_run(self.account, binary):
            return binary
        for need in needs:
            self.copy_whole(base / need, self.folder("bin") / need)
        return self.folder("bin") / binary.relative_to(base)

    def copy_whole(self, source: Path, copy: Path) -> None:
        """Copy once, under a passing name first: a copy cut short must not be taken for a whole one."""
        if copy.exists() or not source.exists():
            return
        part = copy.with_name(f"{copy.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy_any(source, part)
        for path in [copy.parent, part, *part.rglob("*")]:
            own(path, self.account)
        part.rename(copy)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the checkout's file lock; the kernel frees it when its holder dies, however it dies."""
        path = self.run / "lock"
        with path.open("a") as file:
            self.hand_over(path)
            wait_for_file_lock(file.fileno(), path)
            yield

    def remove(self) -> None:
        """Delete the servers' data, wherever it is; stop the servers first."""
        for path in (self.inside, self.outside):
            if path.is_dir() and (is_root() or path.stat().st_uid == self.account.pw_uid):
                shutil.rmtree(path)


def settled(checkout: Path = CHECKOUT) -> Home:
    """The checkout's home, made if need be.

    Raises:
        EmbeddedError: this user can't have one there.
    """
    home = Home(checkout)
    with spoken(checkout):
        home.settle()
    return home


def private_folder(path: Path, account: Account) -> Path:
    """Make `path` a folder that only `account` may enter; refuse one that somebody else laid there."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
        own(path, account)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != account.pw_uid:
        raise EmbeddedError(
            f"{path} is not a folder of the account {account.pw_name}; "
            "work as the account that made it, or run make clean as that account."
        )
    return path


def copy_any(source: Path, target: Path) -> None:
    """Copy a file or a folder."""
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target)


def is_utf8(raw: bytes) -> bool:
    """Whether a path can be said in UTF-8, as connection settings must be."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def lock_file(descriptor: int) -> bool:
    """Take an exclusive lock if it is free; returns whether it was."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_file_lock(descriptor: int, path: Path) -> None:
    """Take an exclusive lock, but not for ever: its holder may be stopped in a debugger."""
    deadline = time.monotonic() + LOCK_SECONDS
    while not lock_file(descriptor):
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"another process has held {path} for {LOCK_SECONDS:.0f} s; find it and end it."
            )
        time.sleep(0.05)

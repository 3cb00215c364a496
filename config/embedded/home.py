"""Where a checkout's embedded servers live, and as which account they run.

PostgreSQL refuses to run as root. Started by root, the servers run as the checkout's owner, or as `nobody`
where that is root as well.

The home is `.run/home`. Where that can't work (a path too long for a socket, characters that break a shell, a
folder that the servers' account may not enter) it is `/var/tmp/holdfast-<account>-<checkout>` instead. No
permission of a parent folder is ever widened.
"""

import fcntl
import hashlib
import os
import pwd
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent.parent
LONGEST_HOME = 103 - len("/.s.PGSQL.5432")  # a socket's path has at most 107 bytes on Linux, 103 on macOS
PLAIN_PATH = re.compile(r"[\w /.@+-]+")  # pg_ctl passes paths to a shell, libpq splits hosts at commas
OWN_SERVERS = "set DATABASE_URL and REDIS_URL to servers of your own"

Done = subprocess.CompletedProcess[str]


class EmbeddedError(Exception):
    """The embedded servers can't be used; the message is one sentence with the reason and the fix."""


class Home:
    """The private folder of one checkout's servers, made if need be; raises EmbeddedError."""

    def __init__(self, checkout: Path = CHECKOUT) -> None:
        self.account = server_account(checkout)
        run = checkout / ".run"
        with explained(checkout):
            with suppress(FileExistsError):
                run.mkdir(mode=0o755)
                if is_root():  # in an ordinary user's checkout it belongs to that user
                    os.chown(run, checkout.stat().st_uid, checkout.stat().st_gid)
            home = run / "home"
            short = len(os.fsencode(home)) <= LONGEST_HOME
            if not (short and PLAIN_PATH.fullmatch(str(home)) and self.can_run("test", "-x", run)):
                key = hashlib.sha256(os.fsencode(checkout)).hexdigest()[:12]
                home = Path("/var/tmp", f"holdfast-{self.account.pw_name}-{key}")  # noqa: S108  see folder()
            self.path = self.folder(home)

    def folder(self, path: Path) -> Path:
        """Make `path` a folder that only the account may enter; refuse one of another account."""
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
            self.own(path)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != self.account.pw_uid:
            raise EmbeddedError(
                f"{path} is not a folder of the account {self.account.pw_name}; "
                "work as the account that made it, or run make clean as that account."
            )
        return path

    def own(self, path: Path) -> None:
        """Give `path` to the account if this is root; other users own what they make."""
        if is_root():
            os.chown(path, self.account.pw_uid, self.account.pw_gid, follow_symlinks=False)

    def run(self, *command: str | Path, cwd: Path | str = "/", inherit: Sequence[int] = ()) -> Done:
        """Run a short command as the account, away from this terminal and environment."""
        gid = self.account.pw_gid
        identity: dict[str, Any] = {"user": self.account.pw_uid, "group": gid, "extra_groups": [gid]}
        return subprocess.run(
            command,
            cwd=cwd,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C in the starter's terminal must not reach the servers
            check=False,
            pass_fds=inherit,
            **(identity if is_root() else {}),
        )

    def can_run(self, *command: str | Path) -> bool:
        """Return True if the account can run a command and it succeeds."""
        try:
            return self.run(*command).returncode == 0
        except OSError:
            return False

    def usable(self, binary: Path, base: Path, needs: Sequence[str]) -> Path:
        """Return `binary`, or its copy in the home if the account can't run it (a wheel below /root).

        Args:
            binary: the program, below `base`.
            base: the folder that its paths to its own libraries start from.
            needs: what must be copied along, below `base`; absent ones are not needed here.
        """
        if self.can_run(binary, "--version"):
            return binary
        copies = self.folder(self.path / "bin")
        for name in needs:
            copy, part = copies / name, copies / "part"
            if (base / name).exists() and not copy.exists():
                shutil.rmtree(part, ignore_errors=True)
                subprocess.run(["cp", "-aH", base / name, part], check=True)
                for made in (part, *part.rglob("*")):
                    self.own(made)
                copy.parent.mkdir(exist_ok=True)
                self.own(copy.parent)
                part.rename(copy)
        return copies / binary.relative_to(base)

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the home's file lock; the kernel frees it when its holder dies, however it dies."""
        path = self.path / "lock"
        with explained(self.path), path.open("a") as file:
            self.own(path)
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file.fileno()


def is_root() -> bool:
    """Return True if this process may act as others."""
    return os.geteuid() == 0


def server_account(checkout: Path) -> pwd.struct_passwd:
    """Return the account that the servers of `checkout` run as, never root's."""
    uid = checkout.stat().st_uid if is_root() else os.geteuid()
    with suppress(KeyError):  # the checkout is mounted from another machine
        if uid:
            return pwd.getpwuid(uid)
    if is_root():
        return pwd.getpwnam("nobody")
    raise EmbeddedError(
        f"user id {uid} has no name on this machine, and PostgreSQL refuses to run without one; "
        f"add an account for it, or {OWN_SERVERS}."
    )


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn what the system refuses, while `folder` is worked in, into one sentence."""
    try:
        yield
    except OSError as error:
        raise EmbeddedError(
            f"the embedded servers can't work in {folder}: {error.strerror} ({error.filename}); "
            f"use a checkout that belongs to you, free some space, or {OWN_SERVERS}."
        ) from error

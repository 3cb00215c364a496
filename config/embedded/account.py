"""Who the embedded servers run as.

PostgreSQL refuses to run as root. Started by root, the servers run as the checkout's owner, or as `nobody`
where that is root as well; the environment variable HOLDFAST_RUN_AS names another account.
"""

import os
import pwd
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from config.embedded.errors import OWN_SERVERS, EmbeddedError

Account = pwd.struct_passwd
Done = subprocess.CompletedProcess[str]


class Identity(TypedDict, total=False):
    """The arguments of `subprocess.run` that change the account."""

    user: int
    group: int
    extra_groups: list[int]


def is_root() -> bool:
    """Whether this process may act as others."""
    return os.geteuid() == 0


def current_account() -> Account:
    """The account of this process; PostgreSQL, too, insists that it has a name."""
    try:
        return pwd.getpwuid(os.geteuid())
    except KeyError:
        raise EmbeddedError(
            f"user id {os.geteuid()} has no name on this machine, and PostgreSQL refuses to run without one; "
            f"add an account for it, or {OWN_SERVERS}."
        ) from None


def named_account(name: str) -> Account:
    """The account called `name`, which must not be root's."""
    try:
        account = pwd.getpwnam(name)
    except KeyError:
        raise EmbeddedError(
            f"there is no account {name!r} to run the servers as; set HOLDFAST_RUN_AS to one that exists."
        ) from None
    if account.pw_uid == 0:
        raise EmbeddedError(
            f"HOLDFAST_RUN_AS={name} is root, which PostgreSQL refuses; name another account."
        )
    return account


def server_account(checkout: Path) -> Account:
    """Who the servers of `checkout` run as."""
    if not is_root():
        return current_account()
    if chosen := os.environ.get("HOLDFAST_RUN_AS"):
        return named_account(chosen)
    return owner_of(checkout) or named_account("nobody")


def owner_of(checkout: Path) -> Account | None:
    """The ordinary account that owns `checkout`, or None."""
    try:
        owner = pwd.getpwuid(checkout.stat().st_uid)
    except KeyError:
        return None
    return owner if owner.pw_uid else None


def own(path: Path, account: Account) -> None:
    """Give `path` to `account` when we are root; others already own what they make."""
    if is_root():
        os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)


def run_as(
    account: Account, command: Sequence[str | Path], cwd: Path | str = "/", keep_open: int | None = None
) -> Done:
    """Run a short command, away from our terminal and our environment.

    Args:
        account: who runs it; only root can name another.
        command: the program and its arguments.
        cwd: where it works.
        keep_open: an open file that it and its children inherit.
    """
    identity: Identity = {}
    if is_root():
        identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": [account.pw_gid]}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C in the starter's terminal must not reach a server that others use
        check=False,
        pass_fds=[] if keep_open is None else [keep_open],
        **identity,
    )


def can_run(account: Account, binary: Path) -> bool:
    """Whether `account` can reach and execute `binary`."""
    try:
        return run_as(account, [binary, "--version"]).returncode == 0
    except OSError:
        return False


def can_enter(account: Account, folder: Path) -> bool:
    """Whether `account` may go through every folder down to `folder`."""
    if not is_root():
        return True  # we are the account, and the folder is ours
    return run_as(account, ["/bin/sh", "-c", 'cd "$1"', "sh", folder]).returncode == 0

"""The one error of the embedded servers, and what it says."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FREE_MB = 200  # a new PostgreSQL cluster takes about 70 MB, and its write-ahead log grows
OWN_SERVERS = "set DATABASE_URL and REDIS_URL to servers of your own"


class EmbeddedError(Exception):
    """The embedded servers can't be had; the message is one sentence with the reason and the way out."""


def disk_full(folder: Path) -> EmbeddedError:
    """The sentence for a full disk."""
    free = shutil.disk_usage(folder).free // 2**20
    return EmbeddedError(
        f"the disk of {folder} is full ({free} MB free, the embedded servers need {FREE_MB}); "
        f"free some space, or {OWN_SERVERS}."
    )


def demand_space(folder: Path) -> None:
    """Refuse early what would end half written."""
    if shutil.disk_usage(folder).free < FREE_MB * 2**20:
        raise disk_full(folder)


@contextmanager
def spoken(folder: Path) -> Iterator[None]:
    """Turn what the system refuses, while `folder` is worked in, into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full(folder) from error
        raise EmbeddedError(
            f"the embedded servers can't work in {folder}: {error.strerror} ({error.filename}); "
            f"use a checkout that belongs to you, or {OWN_SERVERS}."
        ) from error

"""A runtime directory of the test's own, and a watcher that looks into it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from locking import liveness
from locking.liveness import Record, registration, watcher
from locking.signals import flush
from locking.testing.contract.base import until

__all__ = ["runtime_dir", "watching"]

PATIENCE = 30.0

NO_PID = 1 << 30
"""Linux has none that high."""


def own_path(alias: str = "default") -> Path:
    """Return the file of this process for a backend."""
    (found,) = [path for path in registration._files if path.name.endswith(f".{alias}")]
    return found


def put(folder: Path, client: str, alias: str = "default", **changes: Any) -> Path:
    """Write the file of a process, dead by default, and return its path."""
    fields = {"mark": liveness.mark(), "pid": NO_PID, "start": 1, **changes}
    path = folder / f"{fields['mark']}.{fields['pid']}.{fields['start']}.{client}.{alias}"
    path.touch()
    return path


def dead_in(folder: Path) -> dict[Path, Record]:
    """Return the files of dead processes."""
    return {path: record for path, record in liveness.peers(folder).items() if not record.is_running()}


@pytest.fixture
def runtime_dir(tmp_path: Path, settings: Any) -> Iterator[Path]:
    """A directory for this test's processes; this one has not registered yet."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    settings.LOCKING_RUNTIME_DIR = folder
    registration.problem = None
    registration.reset()
    yield folder
    registration.leave()
    registration.problem = None
    registration.reset()


@pytest.fixture
def watching(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same, and dead processes are looked for; a row of the audit that is under way is this test's."""
    monkeypatch.setattr(watcher, "enabled", True)
    yield runtime_dir
    registration.leave()
    registration.reset()  # without a directory the watcher comes to rest
    until(lambda: not watcher._unfinished(), PATIENCE)
    flush()

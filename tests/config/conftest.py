"""Scratch checkouts with embedded servers of their own."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from config import embedded

ROOT = Path(__file__).resolve().parents[2]
START = "import sys; from pathlib import Path; from config import embedded; embedded.start(Path(sys.argv[1]))"


@pytest.fixture
def make_checkout() -> Iterator[Callable[..., Path]]:
    """Makes empty checkouts where any account may enter, and removes their servers afterwards."""
    room = Path(tempfile.mkdtemp(prefix="hf-", dir="/tmp"))
    room.chmod(0o755)
    made: list[Path] = []

    def make(name: str = "project", mode: int = 0o755) -> Path:
        checkout = room / name
        checkout.mkdir(parents=True, mode=mode)
        made.append(checkout)
        return checkout

    yield make
    for checkout in made:
        embedded.remove(checkout)
    shutil.rmtree(room)


@pytest.fixture
def checkout(make_checkout: Callable[..., Path]) -> Path:
    """One empty checkout."""
    return make_checkout()


@pytest.fixture
def starter() -> Callable[..., subprocess.Popen[str]]:
    """Starts both servers of a checkout from a process of its own."""

    def start(checkout: Path, start_new_session: bool = False) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", START, str(checkout)],
            cwd=ROOT,
            start_new_session=start_new_session,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start

"""Scratch checkouts with embedded servers of their own."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from config import embedded
from config.embedded import Done
from tests import ROOT

START = "import sys; from pathlib import Path; from config import embedded; embedded.start(Path(sys.argv[1]))"


@pytest.fixture
def make_checkout() -> Iterator[Callable[..., Path]]:
    """Makes empty checkouts where any account may enter, and removes their servers afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="hf-", dir="/tmp"))
    folder.chmod(0o755)
    made: list[Path] = []

    def make(name: str = "project", mode: int = 0o755) -> Path:
        checkout = folder / name
        checkout.mkdir(parents=True, mode=mode)
        made.append(checkout)
        return checkout

    yield make
    for checkout in made:
        embedded.remove(checkout)
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def copied_clusters(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Done]:
    """In place of `Postgres.tool`: the first cluster that initdb makes is copied where another is wanted."""
    original, real = tmp_path_factory.mktemp("cluster") / "original", embedded.Postgres.tool

    def tool(server: embedded.Postgres, name: str, *arguments: str, pass_fds: tuple[int, ...] = ()) -> Done:
        target = server.home.path / arguments[1]
        if name == "initdb" and original.exists():
            subprocess.run(["cp", "-a", original, target], check=True)
            if target.stat().st_uid != server.home.account.pw_uid:
                for path in [target, *target.rglob("*")]:
                    server.home.own(path)
            return Done([], 0, "", "")
        done = real(server, name, *arguments, pass_fds=pass_fds)
        if name == "initdb":
            subprocess.run(["cp", "-a", target, original], check=True)
        return done

    return tool


@pytest.fixture
def checkout(
    make_checkout: Callable[..., Path], copied_clusters: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """One empty checkout, for tests of what comes after initdb."""
    monkeypatch.setattr(embedded.Postgres, "tool", copied_clusters)
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

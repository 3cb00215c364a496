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
from tests.support.once import made_once

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
    real = embedded.Postgres.tool

    def tool(server: embedded.Postgres, name: str, *arguments: str, pass_fds: tuple[int, ...] = ()) -> Done:
        if name != "initdb":
            return real(server, name, *arguments, pass_fds=pass_fds)
        target = server.home.path / arguments[1]

        def keep(original: Path) -> None:
            real(server, name, *arguments, pass_fds=pass_fds).check_returncode()
            shutil.move(target, original)

        subprocess.run(["cp", "-a", made_once(tmp_path_factory, "cluster", keep), target], check=True)
        if target.stat().st_uid != server.home.account.pw_uid:
            for path in [target, *target.rglob("*")]:
                server.home.own(path)
        return Done([], 0, "", "")

    return tool


@pytest.fixture
def without_initdb(copied_clusters: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what comes after initdb."""
    monkeypatch.setattr(embedded.Postgres, "tool", copied_clusters)


@pytest.fixture
def checkout(make_checkout: Callable[..., Path], without_initdb: None) -> Path:
    """One empty checkout, where no cluster is made but by a process of its own."""
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

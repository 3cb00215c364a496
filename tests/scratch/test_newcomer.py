"""A new project with the wheel and the documentation's code: every way in is protected."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.private_redis import private_redis
from tests.scratch.newcomer import Newcomer, Shown, table
from tests.support.scratch import scratch_database

pytestmark = [pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def newcomer(
    wheel: Path, tmp_path_factory: pytest.TempPathFactory, django_db_setup: None
) -> Iterator[Newcomer]:
    """The new project, made by Django's commands and the page's code."""
    folder = tmp_path_factory.mktemp("newcomer")
    zipfile.ZipFile(wheel).extractall(folder / "wheel")
    (project := folder / "project").mkdir()
    with scratch_database("newcomer") as database, private_redis() as redis:
        broker = f"redis+socket://{redis.path}?virtual_host=1"
        made = Newcomer(
            project, Path(sys.executable), database, redis.url, broker, path=str(folder / "wheel")
        )
        made.make()
        yield made


@pytest.mark.parametrize(
    "ways", [Newcomer.served_by_gunicorn, Newcomer.served_by_uvicorn, Newcomer.elsewhere]
)
def test_every_way_into_a_new_project_is_protected(
    newcomer: Newcomer, ways: Callable[[Newcomer], Iterator[Shown]], capsys: pytest.CaptureFixture[str]
) -> None:
    """View, DRF, ninja, async view, admin action under gunicorn and uvicorn; task, command; naive refused."""
    shown = list(ways(newcomer))
    with capsys.disabled():
        print(f"\n{newcomer.versions()}\n{table(shown)}")
    assert [each for each in shown if not each.good] == []

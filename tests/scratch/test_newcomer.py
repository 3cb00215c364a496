"""A new project with the wheel and the documentation's code: every way in is protected."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from tests.private_redis import private_redis
from tests.scratch.newcomer import Newcomer, table
from tests.support.scratch import scratch_database

pytestmark = [pytest.mark.timeout(600)]


def test_every_way_into_a_new_project_is_protected(
    wheel: Path, tmp_path: Path, django_db_setup: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """View, DRF, ninja, async view, admin action under gunicorn and uvicorn; task, command; naive refused."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "wheel")
    (tmp_path / "project").mkdir()
    with scratch_database("newcomer") as database, private_redis() as redis:
        broker = f"redis+socket://{redis.path}?virtual_host=1"
        newcomer = Newcomer(
            tmp_path / "project", Path(sys.executable), database, redis.url, broker, str(tmp_path / "wheel")
        )
        shown = list(newcomer.show())
    with capsys.disabled():
        print(f"\n{newcomer.versions()}\n{table(shown)}")
    assert [each for each in shown if not each.good] == []

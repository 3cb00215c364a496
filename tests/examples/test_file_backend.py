"""The example of a third-party backend keeps the shipped contract."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from locking.testing.contract import LockContract
from tests import ROOT

FILES = "examples.file_backend.FileBackend"
LENGTH_LIMIT = 100


class TestFileBackend(LockContract):
    """In a folder of each test's own."""

    unreachable = {"BACKEND": FILES, "LOCATION": "/nowhere/locks"}  # noqa: RUF012 - as the contract has it

    @pytest.fixture
    def backend_settings(self, tmp_path: Path) -> Mapping[str, Any]:
        """Its entry in LOCKING."""
        return {"BACKEND": FILES, "LOCATION": str(tmp_path)}


def test_the_example_is_short():
    """It is what the docs say it is: under a hundred lines."""
    source = ROOT / "examples" / "file_backend.py"
    assert len(source.read_text().splitlines()) < LENGTH_LIMIT

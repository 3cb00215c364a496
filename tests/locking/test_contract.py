"""The shipped contract, over every backend of the table."""

from collections.abc import Mapping
from typing import Any, cast

import pytest

from locking.testing.contract import LockContract
from tests.backends import BACKENDS, Backend


@pytest.fixture(params=list(BACKENDS.values()), ids=list(BACKENDS))
def row(request: pytest.FixtureRequest) -> Backend:
    """A row of the table."""
    return cast(Backend, request.param)


class TestContract(LockContract):
    """One run for each row."""

    @pytest.fixture
    def backend_settings(self, row: Backend, request: pytest.FixtureRequest) -> Mapping[str, Any]:
        """Its settings."""
        type(self).unreachable, type(self).shortest_ttl = row.unreachable, row.shortest_ttl
        return row.reached(request)

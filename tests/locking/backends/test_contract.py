"""The shipped contract: what depends on the engine over every backend of the table, the rest on one."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest

from locking.testing.contract import CoreContract, EngineContract
from tests.backends import BACKENDS, MEMORY, Backend


@pytest.fixture(params=list(BACKENDS.values()), ids=list(BACKENDS))
def row(request: pytest.FixtureRequest) -> Backend:
    """A row of the table."""
    return cast(Backend, request.param)


class TestContract(EngineContract):
    """One run for each row."""

    @pytest.fixture
    def backend_settings(
        self, row: Backend, request: pytest.FixtureRequest, django_db_blocker: Any
    ) -> Iterator[Mapping[str, Any]]:
        """Its settings, once its servers run."""
        type(self).unreachable, type(self).shortest_ttl = row.unreachable, row.shortest_ttl
        entry = row.reached(request)
        if row.fixture is None:
            yield entry
            return
        request.getfixturevalue("nowhere")
        with django_db_blocker.unblock():
            yield entry


class TestCore(CoreContract):
    """One run: no engine can change this."""

    settings = {"BACKEND": MEMORY}  # noqa: RUF012 - as the contract has it
    shortest_ttl = BACKENDS["memory"].shortest_ttl

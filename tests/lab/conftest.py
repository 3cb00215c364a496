"""What the tests of the lab share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.interleaving import close_idle_connections


@pytest.fixture(autouse=True, scope="module")
def idle_buyers_are_closed() -> Iterator[None]:
    """Close the connections that the buyers of a module have left open."""
    yield
    close_idle_connections()

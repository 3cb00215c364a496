"""What the lock's tests share."""

from collections.abc import Iterator

import pytest

from locking.renewal import watchdog


@pytest.fixture(autouse=True)
def _no_ghosts_of_other_tests() -> Iterator[None]:
    """Let no burial begun by one test reach into the next."""
    yield
    watchdog._ghosts.clear()

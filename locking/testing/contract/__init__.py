"""The contract of a lock backend, as tests that any backend can run.

    from locking.testing.contract import LockContract

    class TestMyBackend(LockContract):
        settings = {"BACKEND": "my.locks.MyBackend", "LOCATION": "my://localhost"}

Every claim is tested both ways: where a flag of the backend is on, the behaviour happens; where it is off,
it is refused. Needs pytest; asyncio's tests bring their own event loop.
"""

import pytest

PARTS = ("arguments", "asyncio_", "base", "flags", "holding", "loss", "processes", "reentry", "waiting")
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in PARTS))

from locking.testing.contract.arguments import ArgumentContract  # noqa: E402 - after the line above
from locking.testing.contract.asyncio_ import AsyncContract  # noqa: E402
from locking.testing.contract.flags import FlagContract  # noqa: E402
from locking.testing.contract.holding import HoldingContract  # noqa: E402
from locking.testing.contract.loss import LossContract  # noqa: E402
from locking.testing.contract.processes import ProcessContract  # noqa: E402
from locking.testing.contract.reentry import ReentryContract  # noqa: E402
from locking.testing.contract.waiting import WaitingContract  # noqa: E402

__all__ = ["LockContract"]


class LockContract(
    ArgumentContract,
    HoldingContract,
    WaitingContract,
    ReentryContract,
    LossContract,
    ProcessContract,
    FlagContract,
    AsyncContract,
):
    """All of the contract; subclass it and set `settings` (see the attributes of `ContractBase`)."""

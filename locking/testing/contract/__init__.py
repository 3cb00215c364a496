"""The contract of a lock backend, as tests that any backend can run.

    from locking.testing.contract import LockContract

    class TestMyBackend(LockContract):
        settings = {"BACKEND": "my.locks.MyBackend", "LOCATION": "my://localhost"}

Every claim is tested both ways: where a flag of the backend is on, the behavior happens; where it is off,
it is refused. Needs pytest; asyncio's tests bring their own event loop.

`LockContract` is `EngineContract`, what depends on the engine's answers, and `CoreContract`, what doesn't: a
suite over many engines runs the first on each and the second on one.
"""

import pytest

PARTS = ("names", "asyncio_", "base", "core", "flags", "holding", "loss", "processes", "reentry", "waiting")
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in PARTS))

from locking.testing.contract.asyncio_ import AsyncContract  # noqa: E402
from locking.testing.contract.core import CoreContract  # noqa: E402
from locking.testing.contract.flags import FlagContract  # noqa: E402
from locking.testing.contract.holding import HoldingContract  # noqa: E402
from locking.testing.contract.loss import LossContract  # noqa: E402
from locking.testing.contract.names import NameContract  # noqa: E402 - after the line above
from locking.testing.contract.processes import ProcessContract  # noqa: E402
from locking.testing.contract.waiting import WaitingContract  # noqa: E402

__all__ = ["CoreContract", "EngineContract", "LockContract"]


class EngineContract(
    NameContract,
    HoldingContract,
    WaitingContract,
    LossContract,
    ProcessContract,
    FlagContract,
    AsyncContract,
):
    """What depends on the engine; subclass it and set `settings` (see the attributes of `ContractBase`)."""


class LockContract(EngineContract, CoreContract):
    """All of the contract; subclass it and set `settings` (see the attributes of `ContractBase`)."""

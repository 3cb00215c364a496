"""The shipped contract over the kinds that one holder has at a time: the write lock and the fair lock."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from django.test.utils import override_settings

from locking import Lock, get_fair_lock, get_write_lock
from locking.backends.base import BaseLockBackend
from locking.handler import locks
from locking.testing.contract.asyncio_ import AsyncContract
from locking.testing.contract.flags import FlagContract
from locking.testing.contract.holding import HoldingContract
from locking.testing.contract.loss import LossContract
from locking.testing.contract.processes import ProcessContract
from locking.testing.contract.reentry import ReentryContract
from locking.testing.contract.waiting import WaitingContract
from tests.backends import BACKENDS, Backend, with_kind

PARTS = (
    HoldingContract, WaitingContract, ReentryContract, LossContract, ProcessContract, FlagContract,
    AsyncContract,
)  # fmt: skip
KINDS: dict[str, Callable[..., Lock]] = {"write": get_write_lock, "fair": get_fair_lock}
# etcd's line is ZooKeeper's (`locking.backends.lines`), and test_kinds.py asks it too.
GRID = [(kind, row) for kind in KINDS for row in with_kind(kind) if row != "etcd"]

# These kinds have one name.
SEVERAL_NAMES = (
    "test_several_names_are_taken_all_or_none",
    "test_opposite_orders_never_deadlock",
    "test_several_names_count_as_lost_when_one_is",
    "test_an_early_name_that_ended_while_waiting_for_a_later_one",
    "test_several_names_all_or_none_for_tasks",
)
# These are claims about the whole backend, not about one of its kinds.
WHOLE_BACKEND = ("test_kinds", "test_the_configuration_is_sound", "test_a_closed_backend_opens_again")


@pytest.fixture(params=GRID, ids="-".join)
def cell(request: pytest.FixtureRequest) -> tuple[str, Backend]:
    """One kind on one backend."""
    kind, row = request.param
    return kind, BACKENDS[row]


class TestKindsContract(*PARTS):  # type: ignore[misc]
    """One run for each kind on each backend."""

    @pytest.fixture
    def backend_settings(
        self, cell: tuple[str, Backend], request: pytest.FixtureRequest
    ) -> Mapping[str, Any]:
        """The settings of the row."""
        row = cell[1]
        type(self).unreachable, type(self).shortest_ttl = row.unreachable, row.shortest_ttl
        return row.reached(request)

    @pytest.fixture(autouse=True)
    def backend(
        self, backend_settings: Mapping[str, Any], cell: tuple[str, Backend], monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[BaseLockBackend]:
        """The variant under test; what the contract's parts call `get_lock` is its getter."""
        for part in PARTS:
            monkeypatch.setattr(sys.modules[part.__module__], "get_lock", KINDS[cell[0]])
        with override_settings(LOCKING={"default": dict(backend_settings)}):
            yield locks["default"].variant(cell[0])


for left_out in (*SEVERAL_NAMES, *WHOLE_BACKEND):
    setattr(TestKindsContract, left_out, None)

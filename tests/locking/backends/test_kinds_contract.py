"""The shipped contract over the kinds that one holder has at a time: the write lock and the fair lock."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from django.test.utils import override_settings

from locking import Lock, get_write_lock
from locking.backends.base import BaseLockBackend
from locking.backends.capabilities import backend_of
from locking.contrib.redisson import get_fair_lock
from locking.core.handler import locks
from locking.testing.contract.asyncio_ import AsyncContract
from locking.testing.contract.base import ContractBase
from locking.testing.contract.core import BodyContract, OwnershipContract
from locking.testing.contract.flags import FlagContract
from locking.testing.contract.holding import HoldingContract
from locking.testing.contract.loss import LossContract
from locking.testing.contract.processes import ProcessContract
from locking.testing.contract.reentry import ReentryContract
from locking.testing.contract.waiting import WaitingContract
from tests.backends import BACKENDS, Backend, with_kind

ENGINE = (HoldingContract, WaitingContract, LossContract, ProcessContract, FlagContract, AsyncContract)
CORE = (
    OwnershipContract,
    ReentryContract,
    BodyContract,
)  # and its parts about several names: these kinds have one
KINDS: dict[str, Callable[..., Lock]] = {"write": get_write_lock, "fair": get_fair_lock}
# etcd's line is ZooKeeper's (`locking.backends.queue`), and PostgreSQL's write lock its ordinary one;
# test_kinds.py asks them too.
KNOWN = ("etcd", "database-advisory")
GRID = [(kind, row) for kind in KINDS for row in with_kind(kind) if row not in KNOWN]

# These are claims about the whole backend, not about one of its kinds.
WHOLE_BACKEND = (
    "test_kinds",
    "test_listing",
    "test_a_list_comes_in_pages",
    "test_the_configuration_is_sound",
    "test_a_closed_backend_opens_again",
)


class Kinds(ContractBase):
    """One run for each cell: a kind on a backend."""

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
        for part in (*ENGINE, *CORE):
            monkeypatch.setattr(sys.modules[part.__module__], "get_lock", KINDS[cell[0]])
        with override_settings(LOCKING={"default": dict(backend_settings)}):
            yield backend_of(locks["default"], cell[0])


class TestKindsContract(Kinds, *ENGINE):  # type: ignore[misc]
    """What depends on the engine, on each that has the kind."""

    @pytest.fixture(params=GRID, ids="-".join)
    def cell(self, request: pytest.FixtureRequest) -> tuple[str, Backend]:
        """One kind on one backend."""
        kind, row = request.param
        return kind, BACKENDS[row]


for left_out in WHOLE_BACKEND:
    setattr(TestKindsContract, left_out, None)


class TestKindsCore(Kinds, *CORE):  # type: ignore[misc]
    """What no engine can change, on one."""

    @pytest.fixture(params=list(KINDS))
    def cell(self, request: pytest.FixtureRequest) -> tuple[str, Backend]:
        """One kind in memory."""
        return request.param, BACKENDS["memory"]

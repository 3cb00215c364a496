"""Bad arguments are refused before anything is sent; good names may be very odd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

from locking.backends.base import BaseLockBackend
from locking.exceptions import LockKeyError
from locking.lock import get_lock
from locking.testing.contract.base import ContractBase, elsewhere

VERBS = (
    "try_acquire", "extend", "extend_many", "release", "holder", "place",
    "atry_acquire", "aextend", "arelease", "aholder", "aplace",
)  # fmt: skip

MISTAKES: dict[str, Callable[[], object]] = {
    "no name": lambda: get_lock(),
    "empty name": lambda: get_lock(""),
    "blank name": lambda: get_lock(" \t"),
    "a name that is no str": lambda: get_lock(42),  # type: ignore[arg-type]
    "None as a name": lambda: get_lock("a", None),  # type: ignore[arg-type]
    "name too long": lambda: get_lock("x" * 1025),
    "open brace": lambda: get_lock("a{b"),
    "closing brace first": lambda: get_lock("a}b{"),
    "lone surrogate": lambda: get_lock("\ud800"),
    "ttl of 0": lambda: get_lock("a", ttl=0),
    "negative ttl": lambda: get_lock("a", ttl=-1),
    "ttl of True": lambda: get_lock("a", ttl=True),
    "ttl as text": lambda: get_lock("a", ttl="10"),  # type: ignore[arg-type]
    "ttl without end": lambda: get_lock("a", ttl=float("inf")),
    "ttl that is no number": lambda: get_lock("a", ttl=float("nan")),
    "ttl of years": lambda: get_lock("a", ttl=10**9),
    "negative wait": lambda: get_lock("a", wait=-0.1),
    "wait as text": lambda: get_lock("a", wait="5"),  # type: ignore[arg-type]
    "negative wait at the call": lambda: get_lock("a").acquire(wait=-1),
    "negative min_hold": lambda: get_lock("a", min_hold=-1),
}

ODD_NAMES = {
    "longest": "n" * 1024,
    "Chinese and emoji": "订单:42 🔒",
    "Cyrillic, four bytes each escaped": "заказ:" + "я" * 300,
    "spaces": " a  b ",
    "line ends": "a\r\nb",
    "NUL": "a\0b",
    "braces": "cart:{42}:lines",
    "glob": "a*?[b]",
    "percent": "%s%d%%",
    "quotes": "a'b\"c`d",
    "slashes": "../a/b\\c",
    "looks like a number": "-1",
}

LOOK_ALIKES = [("a", "A"), ("a", "a "), ("é", "e\u0301"), ("1", "01"), ("a:b", "a:{b}")]


class ArgumentContract(ContractBase):
    """Names and numbers."""

    @pytest.mark.parametrize("mistake", list(MISTAKES.values()), ids=list(MISTAKES))
    def test_bad_arguments_are_refused_before_io(
        self, backend: BaseLockBackend, mistake: Callable[[], object]
    ) -> None:
        """A mistake in an argument raises ValueError and the backend is never asked."""
        with _forbidden(backend), pytest.raises(ValueError, match=r"not|needs|at most|empty|pair") as caught:
            mistake()
        assert len(str(caught.value)) > 20

    def test_a_bad_extension_is_refused_before_io(self, backend: BaseLockBackend, name: str) -> None:
        """`extend` refuses a ttl that can't be one without asking the backend, and the lease stays."""
        with get_lock(name, ttl=30) as lease:
            with _forbidden(backend), pytest.raises(ValueError, match="ttl must be"):
                lease.extend(0)
            lease.ensure_held()

    def test_names_that_are_no_names_raise_lock_key_error(self) -> None:
        """A bad name is both a LockError and a ValueError, and the message shows it."""
        with pytest.raises(LockKeyError, match=r"42.*int"):
            get_lock(42)  # type: ignore[arg-type]

    @pytest.mark.parametrize("odd", list(ODD_NAMES.values()), ids=list(ODD_NAMES))
    def test_odd_names_lock_like_any_other(self, name: str, odd: str) -> None:
        """Whatever a valid name is made of, it excludes, and is free again after its release."""
        whole = odd if len(odd) == 1024 else f"{odd}{name}"
        with get_lock(whole, ttl=30):
            assert elsewhere(get_lock(whole, ttl=30).try_acquire) is None
        assert elsewhere(lambda: _take_and_release(whole))

    @pytest.mark.parametrize(("one", "other"), LOOK_ALIKES)
    def test_names_that_look_alike_are_two_locks(self, name: str, one: str, other: str) -> None:
        """Case, space, leading zeros, braces and Unicode forms tell names apart."""
        with get_lock(f"{name}:{one}", ttl=30):
            assert elsewhere(lambda: _take_and_release(f"{name}:{other}"))


def _take_and_release(name: str) -> bool:
    lock = get_lock(name, ttl=30)
    if lock.try_acquire() is None:
        return False
    lock.release()
    return True


@contextmanager
def _forbidden(backend: BaseLockBackend) -> Iterator[None]:
    """Fail on any use of the backend's verbs."""
    doors: dict[str, Any] = {
        verb: mock.Mock(side_effect=AssertionError(f"{verb} was called")) for verb in VERBS
    }
    with mock.patch.multiple(backend, **doors):
        yield

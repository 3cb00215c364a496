"""Good names may be very odd, and none of them is another."""

from __future__ import annotations

import pytest

from locking.core.lock import get_lock
from locking.testing.contract.base import ContractBase, elsewhere

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


class NameContract(ContractBase):
    """Names that an engine might trip over."""

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

"""Keywords of other libraries are answered with ours."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import pytest

from locking import (
    distributed_lock,
    get_lock,
    get_read_lock,
    get_semaphore,
    get_write_lock,
    locked_transaction,
)
from locking.contrib.redisson import get_fair_lock
from locking.core.options import CheckedOptions, LockOptions
from locking.testing import override_locks
from locking.transactions.decorator import OPTIONS, Options

TAKES_OPTIONS: dict[str, Callable[..., object]] = {
    "get_lock": partial(get_lock, "a"),
    "get_read_lock": partial(get_read_lock, "a"),
    "get_write_lock": partial(get_write_lock, "a"),
    "get_semaphore": partial(get_semaphore, "a", 2),
    "get_fair_lock": partial(get_fair_lock, "a"),
    "locked_transaction": lambda **options: locked_transaction("a", **options).__enter__(),
    "distributed_lock": distributed_lock,
}


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"timeout": 10}, r"no argument 'timeout': .*ttl= .*wait="),
        ({"blocking_timeout": 3}, r"no argument 'blocking_timeout': .*wait="),
        ({"expire": 3}, r"no argument 'expire': .*ttl="),
        ({"wiat": 3}, r"no argument 'wiat': did you mean wait\?"),
        ({"unheard_of": 3}, r"no argument 'unheard_of': it has .*ttl, .*wait"),
    ],
)
@pytest.mark.parametrize("take", TAKES_OPTIONS, ids=str)
def test_a_foreign_keyword_is_answered(take: str, options: dict[str, Any], reported: str) -> None:
    """Every function that takes the options of a lock names what to write, and itself."""
    with pytest.raises(TypeError, match=rf"{take}\(\) has {reported}"):
        TAKES_OPTIONS[take](**options)


@override_locks()
@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"blocking": False}, r"try_acquire\(\)"),
        ({"timeout": 5}, "wait="),
        ({"blocking_timeout": 5}, "wait="),
    ],
)
def test_acquire_answers_a_foreign_keyword(options: dict[str, Any], reported: str) -> None:
    """`acquire(blocking=False)` is what most people know."""
    with pytest.raises(TypeError, match=reported):
        get_lock("a").acquire(**options)


def test_types_and_defaults_name_the_same_options() -> None:
    """What type checkers accept is what the functions take."""
    defaults = {field.name for field in fields(CheckedOptions)}
    assert set(LockOptions.__annotations__) == defaults - {"kind", "permits"}
    assert {field.name for field in fields(Options)} >= OPTIONS


def test_the_decorator_has_at_most_fourteen_options() -> None:
    """A new one names what goes (ADR 61)."""
    assert len(OPTIONS) <= 14


@pytest.mark.parametrize("name", sorted({field.name for field in fields(Options)} - OPTIONS))
def test_an_option_of_the_lock_is_answered_with_its_place(name: str) -> None:
    """What only tunes the lock belongs to a block in the function."""
    given: dict[str, Any] = {name: None}
    with pytest.raises(TypeError, match=rf"with locked_transaction\(…, {name}=…\)"):
        distributed_lock(**given)

"""Options that are checked once and shared: no caller sees a value that was checked as another's."""

import gc
import weakref
from functools import lru_cache

import pytest
from django.test import override_settings

from locking import get_lock
from locking.core import options
from locking.core.options import shared_options

pytestmark = pytest.mark.usefixtures("memory_locks")


def shared(**given):
    """Return the options of `get_lock(…, **given)`."""
    return shared_options("get_lock", given)


def test_equal_options_are_checked_once():
    """The same arguments give the same object, others another."""
    assert shared(ttl=10.0, wait=3) is shared(ttl=10.0, wait=3)
    assert shared(ttl=10.0) is not shared(ttl=11.0)


def refuses_true_after_one() -> bool:
    """Whether `ttl=True`, which equals 1, is refused although `ttl=1` was accepted before."""
    shared(ttl=1)
    try:
        shared(ttl=True)
    except ValueError:
        return True
    return False


def test_values_that_are_equal_but_of_another_type_are_checked_by_themselves():
    """`ttl=True` is an error, also after `ttl=1`."""
    assert refuses_true_after_one()


def test_without_the_types_a_wrong_value_would_pass(monkeypatch):
    """The mutant: a cache that compares by `==` alone."""
    untyped = lru_cache(maxsize=256)(options._shared_options.__wrapped__)
    monkeypatch.setattr(options, "_shared_options", untyped)
    assert not refuses_true_after_one()


def test_a_hook_is_not_kept_alive():
    """Hooks are mostly closures over much else."""

    def hook(lease):
        pass

    gone = weakref.ref(hook)
    get_lock("a", on_lost=hook)
    del hook
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("given", "error", "reported"),
    [
        ({"ttl": [1]}, ValueError, "ttl must be a number of seconds"),
        ({"timeout": 5}, TypeError, "wait="),
        ({"kind": "read"}, TypeError, "kind"),
    ],
)
def test_what_cannot_be_shared_is_reported_as_ever(given, error, reported):
    """A value without a hash, an option of another library, an option of another function."""
    with pytest.raises(error, match=reported):
        get_lock("a", **given)


def ttl_of_new_lock() -> float:
    """Return the seconds of the lease of a lock without a ttl of its own."""
    with get_lock("a") as lease:
        return lease.ttl


def test_shared_options_follow_the_settings():
    """The alias, as it is now, decides options that aren't given."""
    before = ttl_of_new_lock()
    changed = {"default": {"BACKEND": "locking.backends.memory.MemoryBackend", "TTL": before + 1}}
    with override_settings(LOCKING=changed):
        assert ttl_of_new_lock() == before + 1
    assert ttl_of_new_lock() == before

"""A contract is worth what it refuses: backends and scripts with one rule taken out fail it."""

import secrets
import threading
from types import SimpleNamespace

import pytest
from django.test.utils import override_settings

from locking import LockError
from locking.backends.memory import STORES, Store
from locking.backends.redis import scripts
from locking.core.handler import locks
from locking.core.lease import Lease, SingleLease
from locking.core.lock import Lock, _together
from locking.core.renewal import watchdogs
from locking.testing.contract import LockContract
from tests.backends import MEMORY, REDIS

MUTANTS = {
    "AnyoneReleases": "test_the_engine_itself_refuses_a_stale_owner",
    "AnyoneExtends": "test_the_engine_itself_refuses_a_stale_owner",
    "ExtensionRevives": "test_an_extension_never_revives",
    "NeverExpires": "test_a_lease_ends_by_itself",
    "ExpiresEarly": "test_a_lease_ends_by_itself",
    "GrantsToAll": "test_a_held_lock_refuses_others",
    "OneToken": "test_fencing",
    "LastComeFirstServed": "test_every_waiter_gets_its_turn",
    "NoWakeUps": "test_a_release_wakes_a_waiter",
    "RefusesRepeats": "test_a_repeated_request_of_the_holder_is_granted_again",
    "StaysInLine": "test_a_waiter_that_gave_up_leaves_no_pending_release",
    "BreaksAnyone": "test_force_release",
    "ListsNothing": "test_listing",
    "TooLate": "test_a_free_lock_is_taken_at_once",
    "Blocks": "test_a_wait_of_zero_never_blocks",
}


class Contract(LockContract):
    __test__ = False


class Impatient(Contract):
    """For mutants, of which some would be waited for in vain."""

    patience = 1.0


class Hurried(Contract):
    """For a mutant that loses every lease: the second attempt is one too many."""

    shortest_ttl, patience = 0.05, 0.1


@pytest.fixture(autouse=True)
def a_store_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a mutant leaves behind, such as a token far ahead, is met by no other test."""
    monkeypatch.setitem(STORES, "default", Store())


def run(method: str, backend: dict, contract: type[LockContract] = Contract, **arguments) -> None:
    """Run one test of the contract against `backend`."""
    test = getattr(contract(), method)
    with override_settings(LOCKING={"default": backend}):
        arguments |= {"backend": locks["default"], "name": f"mutant:{secrets.token_hex(8)}"}
        wanted = test.__code__.co_varnames[1 : test.__code__.co_argcount]
        test(**{name: arguments[name] for name in wanted})


@pytest.mark.parametrize("method", sorted(set(MUTANTS.values())))
def test_what_refuses_the_mutants_accepts_the_original(method):
    """The tests below fail for the rule taken out, not for want of something else."""
    run(method, {"BACKEND": MEMORY})


@pytest.mark.parametrize(("mutant", "method"), MUTANTS.items())
def test_a_broken_backend_is_refused(mutant, method):
    """One rule taken out, one test of the contract fails."""
    with pytest.raises((AssertionError, LockError, TimeoutError)):
        run(method, {"BACKEND": f"tests.locking.support.mutants.{mutant}"}, Impatient)


def test_a_backend_that_folds_case_is_refused():
    """Two names that differ by case alone must be two locks."""
    with pytest.raises(AssertionError):
        run(
            "test_names_that_look_alike_are_two_locks",
            {"BACKEND": "tests.locking.support.mutants.FoldsCase"},
            one="a",
            other="A",
        )


def test_a_core_without_a_watchdog_is_refused(monkeypatch):
    """A lease without renewals doesn't outlive its length."""
    monkeypatch.setattr("locking.core.renewal._watched", lambda alias: [])
    with pytest.raises(AssertionError):
        run(
            "test_a_lease_kept_by_the_watchdog_outlives_its_length",
            {"BACKEND": MEMORY},
            Hurried,
            monkeypatch=monkeypatch,
        )


def test_a_core_that_lets_everyone_re_enter_is_refused(monkeypatch):
    """Re-entry by anything that threads share lets a second thread in."""
    shared = SimpleNamespace(**vars(threading) | {"current_thread": lambda: watchdogs})
    monkeypatch.setattr("locking.core.lock.threading", shared)
    monkeypatch.setattr("locking.core.lock.current_context", shared.current_thread)
    with pytest.raises(AssertionError):
        run("test_another_thread_does_not_enter", {"BACKEND": MEMORY})


def names_come_as_they_are_given(patch):
    """Two callers that name the same locks the other way round wait for each other."""
    patch.setattr("locking.core.lock.check_names", lambda names: tuple(dict.fromkeys(names)))


def several_names_are_taken_one_by_one(patch):
    """What was free is kept when another name is busy, and the first is not looked at after the last."""

    async def take(self, wait, context, *, is_task):
        return _together([await part._take(wait, context, is_task=is_task) for part in self._parts])

    patch.setattr(Lock, "_take", take)


def the_end_of_a_block_is_silent(patch):
    """Whatever a release finds, the block ends well."""
    patch.setattr(Lease, "_is_settled", lambda self, failure, error: True)


def the_end_of_a_block_is_loud(patch):
    """A failed release is raised, whatever the body has raised."""
    patch.setattr(Lease, "_is_settled", lambda self, failure, error: False)


CORE_MUTANTS = [
    (names_come_as_they_are_given, "test_several_names_are_taken_all_or_none"),
    (several_names_are_taken_one_by_one, "test_several_names_are_taken_all_or_none"),
    (several_names_are_taken_one_by_one, "test_an_early_name_that_ended_while_waiting_for_a_later_one"),
    (the_end_of_a_block_is_silent, "test_leaving_the_block_tells_a_loss"),
    (the_end_of_a_block_is_loud, "test_a_failing_release_does_not_mask_the_bodys_error"),
]


@pytest.mark.parametrize(("mutant", "method"), CORE_MUTANTS, ids=lambda of: getattr(of, "__name__", of))
def test_a_core_without_a_rule_is_refused(monkeypatch, mutant, method):
    """The same for what no engine decides; `TestCore` shows that the core as it is passes each of them."""
    mutant(monkeypatch)
    with pytest.raises((AssertionError, LockError, pytest.fail.Exception)):
        run(method, {"BACKEND": MEMORY}, Impatient)


def test_a_core_whose_child_passes_for_its_parent_is_refused(monkeypatch, own_redis):
    """A forked child that comes to the end of its parent's block ends the lease as if it were its own."""
    monkeypatch.setattr(SingleLease, "inherited", False)
    backend = {"BACKEND": REDIS, "LOCATION": own_redis.url}
    with pytest.raises(AssertionError, match="LockNotOwned"):
        run("test_leaving_the_block_in_a_fork_leaves_the_lock_with_the_parent", backend)


SCRIPT_MUTANTS = {
    "release without the owner": (
        "RELEASE",
        b"redis.call('HDEL', KEYS[1], ARGV[1]) == 1",
        b"redis.call('DEL', KEYS[1]) == 1",
        "test_the_engine_itself_refuses_a_stale_owner",
    ),
    "extension without the owner": (
        "EXTEND",
        b"if redis.pcall('HEXISTS', key, ARGV[2 * i - 1]) == 1 then",
        b"if redis.call('EXISTS', key) == 1 then",
        "test_the_engine_itself_refuses_a_stale_owner",
    ),
    "extension that revives": (
        "EXTEND",
        b"if redis.pcall('HEXISTS', key, ARGV[2 * i - 1]) == 1 then",
        b"redis.call('HSET', key, ARGV[2 * i - 1], 1) if true then",
        "test_an_extension_never_revives",
    ),
    "release that wakes no waiter": (
        "RELEASE",
        b"handed_off = hand_off(left)",
        b"handed_off = false",
        "test_a_release_wakes_a_waiter",
    ),
    "no re-entry for a repeated request": (
        "ACQUIRE",
        b"if holder == ARGV[1] then",
        b"if false then",
        "test_a_repeated_request_of_the_holder_is_granted_again",
    ),
    "token that repeats": (
        "ACQUIRE",
        b"return (hold(ARGV[1], ARGV[2], '1'))",
        b"hold(ARGV[1], ARGV[2], '1') return 7",
        "test_fencing",
    ),
    "place that stays in line": (
        "RELEASE",
        b"redis.call('LREM', KEYS[3], 0, ARGV[3]) > 0",
        b"false",
        "test_a_waiter_that_gave_up_leaves_no_pending_release",
    ),
}


@pytest.mark.parametrize(
    ("script", "rule", "instead", "method"), list(SCRIPT_MUTANTS.values()), ids=list(SCRIPT_MUTANTS)
)
def test_a_broken_script_is_refused(monkeypatch, own_redis, script, rule, instead, method):
    """The same for the Lua scripts: each rule that safety rests on is held by a test."""
    original = getattr(scripts, script)
    with monkeypatch.context() as patched:
        read = scripts._read
        patched.setattr(scripts, "_read", lambda name: read(name).replace(rule, instead))
        mutant = scripts.Script(*original.names)
    assert mutant.by_source != original.by_source, "the rule isn't written like this any more"
    monkeypatch.setattr(scripts, script, mutant)
    backend = {"BACKEND": "locking.backends.redis.RedisBackend", "LOCATION": own_redis.url}
    with pytest.raises((AssertionError, LockError, TimeoutError)):
        run(method, backend, Impatient)

"""Plain locks inside an open transaction: refused with the fix, or left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client, TestCase
from django.urls import path

from locking import (
    LockNotAcquired,
    LockTransactionError,
    distributed_lock,
    get_lock,
    get_read_lock,
    get_semaphore,
    get_write_lock,
    locked_transaction,
)
from locking.conf import read_alias
from locking.contrib.redisson import get_fair_lock
from locking.core.lock import Lock
from tests.locking.support.helpers import committed, elsewhere

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]

KINDS: dict[str, Callable[..., Lock]] = {
    "lock": lambda **options: get_lock("shop", **options),
    "several": lambda **options: get_lock("shop", "attic", **options),
    "read": lambda **options: get_read_lock("shop", **options),
    "write": lambda **options: get_write_lock("shop", **options),
    "semaphore": lambda **options: get_semaphore("shop", 1, **options),
    "fair": lambda **options: get_fair_lock("shop", **options),
}

on_each_kind = pytest.mark.parametrize("kind", KINDS)


def enter(lock: Lock) -> None:
    with lock:
        pass


async def enter_async(lock: Lock) -> None:
    async with lock:
        pass


FORMS: dict[str, Callable[[Lock], object]] = {
    "with": enter,
    "acquire": lambda lock: lock.acquire(),
    "try_acquire": lambda lock: lock.try_acquire(),
    "async with": async_to_sync(enter_async),
    "aacquire": lambda lock: async_to_sync(lock.aacquire)(),
    "atry_acquire": lambda lock: async_to_sync(lock.atry_acquire)(),
}


def is_taken(kind: str = "lock") -> bool:
    """Whether another would be refused now."""

    def refused() -> bool:
        try:
            with KINDS[kind](wait=0):
                return False
        except LockNotAcquired:
            return True

    return elsewhere(refused) if kind != "read" else elsewhere(get_write_lock("shop").locked)


# --- refuse -----------------------------------------------------------------------------------------------


@on_each_kind
def test_every_kind_is_refused_inside_an_open_transaction(kind: str) -> None:
    """The message names the lock and the fix, and nothing is left taken."""
    refused = pytest.raises(LockTransactionError, match=r"'(shop|attic)'.*locked_transaction.*'ignore'")
    with transaction.atomic(), refused:
        enter(KINDS[kind]())
    assert not is_taken(kind)


@pytest.mark.parametrize("form", ["with", "acquire", "try_acquire"])
def test_every_form_is_refused_inside_an_open_transaction(form: str) -> None:
    """However the lock is asked for."""
    with transaction.atomic(), pytest.raises(LockTransactionError):
        FORMS[form](get_lock("shop"))
    assert not is_taken()


@pytest.mark.parametrize("form", ["async with", "aacquire", "atry_acquire"])
def test_every_asynchronous_form_is_refused(form: str) -> None:
    """Synchronous code has a transaction open, and calls a coroutine that takes a lock."""
    with transaction.atomic(), pytest.raises(LockTransactionError):
        FORMS[form](get_lock("shop"))
    assert not is_taken()


def test_after_the_transaction_the_same_lock_is_granted() -> None:
    """A Lock may be made inside and used outside, for it is the acquisition that counts."""
    with transaction.atomic():
        lock = get_lock("shop")
    enter(lock)


def test_what_is_held_already_may_be_entered_again() -> None:
    """The outer hold outlasts the transaction, so the inner one releases nothing."""
    with get_lock("shop"), transaction.atomic():
        enter(get_lock("shop"))
        assert is_taken()
    assert not is_taken()


def test_another_lock_inside_a_locked_transaction_is_refused() -> None:
    """It would be released before the commit of the outer one; all names belong into that."""
    with locked_transaction("a"), pytest.raises(LockTransactionError, match="it has only 'a'"):
        enter(get_lock("b"))


def view(request: HttpRequest) -> HttpResponse:
    with get_lock("shop"):
        Group.objects.create(name="view")
    return HttpResponse(status=201)


urlpatterns = [path("", view)]


def test_a_view_under_atomic_requests_is_refused(client: Client, atomic_requests: None) -> None:
    """ATOMIC_REQUESTS would commit after the release: the message says how to decorate instead."""
    with pytest.raises(LockTransactionError, match="ATOMIC_REQUESTS is on for 'default'"):
        client.get("/")
    assert committed() == []


class InATestCase(TestCase):
    """Users' own tests run in TestCase's transactions."""

    def test_its_own_transactions_do_not_count(self) -> None:
        enter(get_lock("shop"))
        with transaction.atomic(), pytest.raises(LockTransactionError):
            enter(get_lock("shop"))


def test_mutant_a_lock_that_ignores_the_transaction_is_free_before_the_commit() -> None:
    """Another can take it while what was written under it is not yet visible: that is what is refused."""
    with transaction.atomic():
        with get_lock("shop", on_open_transaction="ignore"):
            Group.objects.create(name="row")
        assert (is_taken(), committed()) == (False, [])
    assert committed() == ["row"]


def test_a_lock_without_autocommit_is_refused() -> None:
    """Nothing commits before its release, whether a block is open or not."""
    connection.set_autocommit(False)
    try:
        with pytest.raises(LockTransactionError, match="autocommit is off on database 'default'"):
            enter(get_lock("shop"))
    finally:
        connection.rollback()
        connection.set_autocommit(True)
    assert not is_taken()


# --- settings ---------------------------------------------------------------------------------------------


def set_policy(settings: Any, policy: str) -> None:
    settings.LOCKING = {"default": {**settings.LOCKING["default"], "ON_OPEN_TRANSACTION": policy}}


def test_the_alias_decides_where_nothing_is_said(settings: Any) -> None:
    """One setting for plain locks, decorated functions and locked transactions."""
    set_policy(settings, "ignore")

    @distributed_lock(key="'decorated'")
    def work() -> None:
        Group.objects.create(name="decorated")

    with transaction.atomic():
        enter(get_lock("shop"))
        work()
        with locked_transaction("transaction"):
            pass
    assert committed() == ["decorated"]


def test_the_argument_overrides_the_alias(settings: Any) -> None:
    """As every setting has it."""
    set_policy(settings, "ignore")
    with transaction.atomic(), pytest.raises(LockTransactionError):
        enter(get_lock("shop", on_open_transaction="refuse"))


def test_a_decorated_function_may_ignore_the_transaction(settings: Any) -> None:
    """It is released before the outer COMMIT, as its author wants it; its error undoes its own work alone."""

    set_policy(settings, "ignore")

    @distributed_lock(key="'shop'")
    def work(*, fail: bool) -> None:
        Group.objects.create(name=f"fails: {fail}")
        if fail:
            raise RuntimeError

    with transaction.atomic():
        work(fail=False)
        assert not is_taken()
        with pytest.raises(RuntimeError):
            work(fail=True)
    assert committed() == ["fails: False"]


def test_what_needs_a_transaction_of_its_own_refuses_whatever_the_alias_says(settings: Any) -> None:
    """A fence has to come first in its transaction, and retries start again."""
    set_policy(settings, "ignore")
    with transaction.atomic(), pytest.raises(LockTransactionError), locked_transaction("shop", fenced=True):
        pytest.fail("the body ran")


def test_a_word_that_can_not_go_together_with_a_fence_is_refused() -> None:
    """Said of one function both is invalid."""
    with pytest.raises(ValueError, match="can't be combined with fenced"):
        locked_transaction("shop", fenced=True, on_open_transaction="ignore").__enter__()


def test_a_policy_that_is_none_is_named() -> None:
    """In the argument and in the setting."""
    with pytest.raises(ValueError, match="on_open_transaction='hold' must be 'refuse' or 'ignore'"):
        get_lock("shop", on_open_transaction="hold")  # type: ignore[arg-type]
    with pytest.raises(ImproperlyConfigured, match="ON_OPEN_TRANSACTION='hold' must be"):
        read_alias("default", {"ON_OPEN_TRANSACTION": "hold"})


def test_a_lock_through_async_to_sync_is_granted_outside_of_transactions() -> None:
    """The look at the open transactions works in an event loop too."""
    async_to_sync(enter_async)(get_lock("shop"))

"""Errors after COMMIT: what is stored is neither run again nor answered as if nothing had been stored."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import pytest
from django.contrib.auth.models import Group
from django.db import OperationalError, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from locking import LockLost, StaleFencingToken, distributed_lock, locked_transaction
from locking.transactions.locked_transaction import LockedAtomic
from tests.locking.support.helpers import committed

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]


def fail(error: Exception) -> NoReturn:
    """Raise `error`, as an on_commit hook may."""
    raise error


def deadlock() -> OperationalError:
    """The error of a database that gave a transaction up."""
    return OperationalError(1213, "Deadlock found")


def seller(runs: list[int], using: list[str], prepare: Callable[[int], None]) -> Callable[[], None]:
    """Return a function with retries that adds one row per run; `prepare` arranges the failure."""

    @distributed_lock(key="'shop'", using=using, retries=2)
    def sell() -> None:
        runs.append(1)
        for alias in using:
            Group.objects.using(alias).create(name=f"{alias} {len(runs)}")
        prepare(len(runs))

    return sell


def hook_that_deadlocks(run: int, using: str = "default") -> None:
    """Register an on_commit hook that fails in the first run."""
    if run == 1:
        transaction.on_commit(partial(fail, deadlock()), using=using)


def break_commit(monkeypatch: pytest.MonkeyPatch, alias: str) -> None:
    """Let the next COMMIT of one database fail with a deadlock; those after it work."""
    connection = connections[alias]

    def commit() -> None:
        monkeypatch.delattr(connection, "commit")
        connection.rollback()
        raise deadlock()

    monkeypatch.setattr(connection, "commit", commit, raising=True)


# --- retries ----------------------------------------------------------------------------------------------


def test_a_hook_that_fails_does_not_run_the_function_again() -> None:
    """A deadlock inside an on_commit hook is raised: the sale is stored, and a second run would double it."""
    runs: list[int] = []
    with pytest.raises(OperationalError, match="Deadlock") as raised:
        seller(runs, ["default"], hook_that_deadlocks)()
    assert committed() == ["default 1"]
    assert raised.value.__notes__ == ["raised after COMMIT on the database 'default': that work is stored"]


def test_a_failed_second_commit_does_not_double_the_first(
    second_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two databases the one that has committed is not written a second time."""
    runs: list[int] = []
    with pytest.raises(OperationalError, match="Deadlock") as raised:
        seller(runs, ["default", second_database], lambda _: break_commit(monkeypatch, "default"))()
    assert committed() == ["second 1"]
    assert raised.value.__notes__ == ["raised after COMMIT on the database 'second': that work is stored"]


def test_a_failed_first_commit_of_two_is_retried(
    second_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing has committed the whole function runs again, on both databases."""
    runs: list[int] = []

    def break_first(run: int) -> None:
        if run == 1:
            break_commit(monkeypatch, second_database)

    seller(runs, ["default", second_database], break_first)()
    assert committed() == ["default 2", "second 2"]


def test_mutant_retries_that_ignore_commits_sell_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the note of the commit the function runs again, and its row is stored twice."""
    monkeypatch.setattr(LockedAtomic, "_note_commit", lambda block: None)
    seller([], ["default"], hook_that_deadlocks)()
    assert committed() == ["default 1", "default 2"]


def test_a_locked_transaction_says_what_was_committed() -> None:
    """The context manager adds the same note to an error that follows its COMMIT."""
    with pytest.raises(RuntimeError) as raised, locked_transaction("shop"):
        transaction.on_commit(partial(fail, RuntimeError("hook")))
    assert raised.value.__notes__ == ["raised after COMMIT on the database 'default': that work is stored"]


# --- answers ----------------------------------------------------------------------------------------------


ERRORS: dict[str, type[Exception]] = {"lost": LockLost, "stale": StaleFencingToken}


@distributed_lock(key="'order'")
def selling(request: HttpRequest, error: str) -> HttpResponse:
    Group.objects.create(name="sold")
    transaction.on_commit(partial(fail, ERRORS[error]("of another lock")))
    return HttpResponse(status=201)


urlpatterns = [path("<str:error>/", selling)]


@pytest.mark.parametrize("error", ERRORS)
def test_a_lost_lock_after_the_commit_is_not_answered_try_again(client: Client, error: str) -> None:
    """The order is stored, so the hook's error comes out instead of a 409 that asks for a second one."""
    with pytest.raises(ERRORS[error], match="of another lock"):
        client.get(f"/{error}/")
    assert committed() == ["sold"]


def test_mutant_answers_that_ignore_commits_deny_a_stored_order(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the note of the commit the visitor hears *try again* although the order is stored."""
    monkeypatch.setattr(LockedAtomic, "_note_commit", lambda block: None)
    response: Any = client.get("/lost/")
    assert (response.status_code, committed()) == (409, ["sold"])

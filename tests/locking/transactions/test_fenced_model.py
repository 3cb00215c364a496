"""`FencedModel`: a row that carries the token itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import pytest
import redis
from django.db import OperationalError, connection, models, transaction
from django.test import override_settings

from locking import LockLost, LockNotOwned, StaleFencingToken, get_lock
from locking.core.lease import Lease, SingleLease
from locking.models import FencedModel
from tests.locking.support.helpers import elsewhere

pytestmark = pytest.mark.django_db(transaction=True)


class Account(FencedModel):
    """Money, protected by a lock of its own."""

    balance = models.IntegerField(default=100)
    objects: models.Manager[Account] = models.Manager()

    class Meta:
        app_label = "fenced_tests"


@pytest.fixture
def account(transactional_db: None) -> Iterator[Account]:
    """An account with 100 in it."""
    with connection.schema_editor() as editor:
        editor.create_model(Account)
    yield Account.objects.create()
    with connection.schema_editor() as editor:
        editor.delete_model(Account)


class Savings(Account):
    """An account whose row lies in two tables: multi-table inheritance."""

    rate = models.IntegerField(default=1)
    objects: models.Manager[Savings] = models.Manager()

    class Meta:
        app_label = "fenced_tests"


class Plan(models.Model):  # noqa: DJ008 - never shown
    """What protects nothing by itself."""

    fee = models.IntegerField(default=1)

    class Meta:
        app_label = "fenced_tests"


class FencedPlan(Plan, FencedModel):  # noqa: DJ008 - never shown
    """A row that has its fence in the second of its two tables."""

    limit = models.IntegerField(default=1)
    objects: models.Manager[FencedPlan] = models.Manager()

    class Meta:
        app_label = "fenced_tests"


SPREAD = [(Savings, ["balance"]), (Savings, ["rate"]), (Savings, ["balance", "rate"]),
          (FencedPlan, ["fee"]), (FencedPlan, ["limit"])]  # fmt: skip
"""Models whose rows lie in two tables, and which fields are written."""


@pytest.fixture
def tables(account: Account) -> Iterator[None]:
    """The tables of the models whose rows lie in two of them."""
    made = [Savings, Plan, FencedPlan]
    for model in made:
        with connection.schema_editor() as editor:
            editor.create_model(model)
    yield
    for model in reversed(made):
        with connection.schema_editor() as editor:
            editor.delete_model(model)


def hold(name: str = "account") -> Lease:
    """Take the lock for a while."""
    return get_lock(name, fenced=True, ttl=60).acquire()


def test_the_newest_holder_writes(account: Account) -> None:
    """Values and expressions are written, read back, and carry the token of the hold."""
    with get_lock("account", fenced=True) as lease:
        account = Account.fenced_get(lease, pk=account.pk)
        account.fenced_update(lease, balance=models.F("balance") - 30)
        assert account.balance == 70
        account.fenced_update(lease, balance=60)
    stored = Account.objects.get()
    assert (stored.balance, stored.fence_token) == (60, lease.fencing_token)
    assert stored.fence_owner == lease.leases[0].owner


def test_a_holder_that_was_overtaken_does_not_write(account: Account, redis_database: redis.Redis) -> None:
    """The next holder has written: the one before is refused, with both tokens, and nothing changes."""
    old = hold()
    account = Account.fenced_get(old, pk=account.pk)
    redis_database.flushdb()

    def overtake() -> int:
        with get_lock("account", fenced=True) as lease:
            Account.fenced_get(lease).fenced_update(lease, balance=1)
            return lease.fencing_token

    newer = elsewhere(overtake)
    for step in (lambda: account.fenced_update(old, balance=99), lambda: Account.fenced_get(old)):
        with pytest.raises(StaleFencingToken, match=f"{old.fencing_token}.*{newer}"):
            step()
    assert Account.objects.get().balance == 1


def lose_an_update(redis_database: redis.Redis, early: Account, old: Lease) -> int:
    """A has read 100; B reads under a newer lease; A writes 95; B writes 93. Return what is stored."""
    redis_database.flushdb()
    new = elsewhere(hold)
    late = Account.fenced_get(new)
    with suppress(StaleFencingToken):
        early.fenced_update(old, balance=early.balance - 5)
    late.fenced_update(new, balance=late.balance - 7)
    return Account.objects.get().balance


def test_an_update_that_was_decided_on_an_older_read_is_refused(
    account: Account, redis_database: redis.Redis
) -> None:
    """B has read behind its stamp, so A's write is refused before B overwrites it: no update is lost."""
    old = hold()
    early = Account.fenced_get(old, pk=account.pk)
    assert lose_an_update(redis_database, early, old) == 93
    with pytest.raises(StaleFencingToken):
        early.fenced_update(old, balance=early.balance - 5)


def test_what_an_older_holder_wrote_before_the_stamp_is_read(
    account: Account, redis_database: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writes 95 right before B's stamp: B decides on 95, not on the 100 that it might have read before."""
    old = hold()
    early = Account.fenced_get(old, pk=account.pk)
    redis_database.flushdb()
    new = elsewhere(hold)
    stamp = Account._stamp

    def after_an_older_write(row: Account, lease: SingleLease) -> bool:
        monkeypatch.setattr(Account, "_stamp", stamp)
        early.fenced_update(old, balance=early.balance - 5)
        return stamp(row, lease)

    monkeypatch.setattr(Account, "_stamp", after_an_older_write)
    late = Account.fenced_get(new)
    late.fenced_update(new, balance=late.balance - 7)
    assert Account.objects.get().balance == 88


def test_mutant_a_stamp_after_the_read_loses_an_update(
    account: Account, redis_database: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only the write is fenced, A's write succeeds between B's read and B's write, and is gone."""
    written: list[int] = []

    def get(lease: Lease, **lookup: object) -> Account:
        return Account.objects.get(**lookup)

    def write(row: Account, lease: Lease, *, balance: int) -> None:
        assert row._stamp(lease.leases[0])
        Account.objects.update(balance=balance)
        written.append(balance)

    monkeypatch.setattr(Account, "fenced_get", get)
    monkeypatch.setattr(Account, "fenced_update", write)
    old = hold()
    assert lose_an_update(redis_database, Account.objects.get(), old) == 93
    assert written == [95, 93], "both heard that they had written, and 5 are missing"


def test_an_instance_that_was_read_without_the_fence_is_refused(account: Account) -> None:
    """What it says may be old by now: the message has the call that reads it again."""
    lease = hold()
    with pytest.raises(ValueError, match=rf"Account\.fenced_get\(lease, pk={account.pk}\)"):
        account.fenced_update(lease, balance=1)
    Account.fenced_get(lease)
    with pytest.raises(ValueError, match="was not read by fenced_get under this lease"):
        account.fenced_update(lease, balance=1)
    assert Account.objects.get().balance == 100


def test_a_newer_holder_between_the_stamp_and_the_read_is_noticed(
    account: Account, redis_database: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In autocommit the two are statements of their own: what is read must carry the own stamp."""
    old = hold()
    stamp = Account._stamp

    def and_be_overtaken(row: Account, lease: SingleLease) -> bool:
        done = stamp(row, lease)
        redis_database.flushdb()
        newer = elsewhere(hold)
        assert stamp(row, newer.leases[0])
        return done

    monkeypatch.setattr(Account, "_stamp", and_be_overtaken)
    with pytest.raises(StaleFencingToken):
        Account.fenced_get(old)


def test_a_number_minted_twice_belongs_to_the_first(account: Account, redis_database: redis.Redis) -> None:
    """The same token of another owner is refused."""
    first = hold()
    Account.fenced_get(first).fenced_update(first, balance=1)
    redis_database.flushdb()
    second = elsewhere(hold)
    second.leases[0].token = first.fencing_token
    redis_database.flushdb()
    with pytest.raises(StaleFencingToken):
        Account.fenced_get(second)
    assert Account.objects.get().balance == 1


def test_a_lease_that_has_ended_does_not_even_ask(
    account: Account, django_assert_num_queries: object
) -> None:
    """What is known to be over needs no database to say so."""
    lost, released = hold(), hold("other")
    lost.leases[0].lose()
    released.release()
    with django_assert_num_queries(0):  # type: ignore[operator]
        with pytest.raises(LockLost):
            account.fenced_update(lost, balance=1)
        with pytest.raises(LockNotOwned):
            account.fenced_update(released, balance=1)
        with pytest.raises(LockLost):
            Account.fenced_get(lost, pk=account.pk)


def test_a_row_that_is_gone_is_distinguished_from_a_stale_token(account: Account) -> None:
    """Deleted is deleted, not overtaken."""
    lease = hold()
    account = Account.fenced_get(lease, pk=account.pk)
    Account.objects.all().delete()
    with pytest.raises(Account.DoesNotExist, match="no longer"):
        account.fenced_update(lease, balance=1)
    with pytest.raises(Account.DoesNotExist):
        Account.fenced_get(lease, pk=account.pk)


def test_a_lease_of_several_names_is_refused(account: Account) -> None:
    """Which of the tokens protects the row must be said."""
    with get_lock("a", "b", fenced=True) as lease:
        with pytest.raises(ValueError, match=r"lease\.leases"):
            Account.fenced_get(lease)
        Account.fenced_get(lease.leases[1]).fenced_update(lease.leases[1], balance=1)
    assert Account.objects.get().balance == 1


def test_a_lease_without_a_token_is_refused(account: Account) -> None:
    """A backend without tokens can protect no row."""
    lease = hold()
    lease.leases[0].token = 0
    with pytest.raises(ValueError, match="fenced=True"):
        Account.fenced_get(lease)


# rows of several tables


@contextmanager
def before_an_update(number: int, step: Callable[[], object]) -> Iterator[None]:
    """Run `step` right before the `number`-th UPDATE that is sent in the block."""
    updates = count(1)

    def watch(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.startswith("UPDATE") and next(updates) == number:
            step()
        return execute(sql, *rest)

    with connection.execute_wrapper(watch):
        yield


def overtaken_within_an_update(model: Any, fields: list[str], redis_database: redis.Redis) -> list[int]:
    """A has read; while A's update is under way B stamps, reads and writes 7. Return what is stored."""
    row = model.objects.create()
    old = hold()
    early = model.fenced_get(old, pk=row.pk)

    def overtake() -> None:
        redis_database.flushdb()
        new = hold()
        model.fenced_get(new, pk=row.pk).fenced_update(new, **dict.fromkeys(fields, 7))

    with before_an_update(1, lambda: elsewhere(overtake)), suppress(StaleFencingToken):
        early.fenced_update(old, **dict.fromkeys(fields, 5))
    stored = model.objects.get(pk=row.pk)
    return [getattr(stored, name) for name in fields]


@pytest.mark.parametrize(("model", "fields"), SPREAD)
def test_a_row_of_two_tables_is_not_written_by_a_holder_overtaken_meanwhile(
    model: Any, fields: list[str], tables: None, redis_database: redis.Redis
) -> None:
    """Django looks at one table and writes the other: the fence is checked and locked in between."""
    assert overtaken_within_an_update(model, fields, redis_database) == [7] * len(fields)


def test_mutant_a_row_of_two_tables_that_is_not_locked_first_is_overwritten(
    tables: None, redis_database: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Treated like a row of one table, A's write comes after B's, which is gone."""
    monkeypatch.setattr(FencedModel, "_lies_in_several_tables", lambda row: False)
    assert overtaken_within_an_update(Savings, ["balance"], redis_database) == [5]


@pytest.mark.parametrize(("model", "fields"), SPREAD)
def test_a_newer_holder_waits_for_an_update_of_two_tables(
    model: Any, fields: list[str], tables: None, redis_database: redis.Redis
) -> None:
    """Between the two statements of A's update B can't stamp the row, so B reads what A has written."""
    row = model.objects.create()
    old = hold()
    early = model.fenced_get(old, pk=row.pk)

    def stamp() -> None:
        redis_database.flushdb()
        new = hold()
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '50ms'")
        with pytest.raises(OperationalError, match="lock timeout"):
            model.fenced_get(new, pk=row.pk)

    with before_an_update(2, lambda: elsewhere(stamp)):
        early.fenced_update(old, **dict.fromkeys(fields, 5))
    redis_database.flushdb()
    new = elsewhere(hold)
    assert getattr(model.fenced_get(new, pk=row.pk), fields[0]) == 5


@pytest.mark.parametrize(("model", "field"), [(Savings, "balance"), (FencedPlan, "fee")])
def test_an_older_holder_does_not_take_the_stamp_of_a_newer_one_away(
    model: Any, field: str, tables: None, redis_database: redis.Redis
) -> None:
    """The stamp is one statement on the table that has it, whatever other tables the row lies in."""
    row = model.objects.create()
    old = hold()

    def overtake() -> int:
        redis_database.flushdb()
        new = hold()
        model.fenced_get(new, pk=row.pk)
        return new.fencing_token

    newer: list[int] = []
    with before_an_update(1, lambda: newer.append(elsewhere(overtake))), pytest.raises(StaleFencingToken):
        model.fenced_get(old, pk=row.pk)
    assert model.objects.get(pk=row.pk).fence_token == newer[0]


class ReadsElsewhere:
    """The router of a project whose reads go to a replica."""

    def db_for_read(self, model: type[models.Model], **hints: Any) -> str:
        return "second"

    def db_for_write(self, model: type[models.Model], **hints: Any) -> str:
        return "default"


def test_an_update_is_read_back_from_where_it_was_written(account: Account, second_database: str) -> None:
    """A router that reads from a replica gives the holder no old values, and moves no later write there."""
    with override_settings(DATABASE_ROUTERS=[ReadsElsewhere()]), get_lock("account", fenced=True) as lease:
        read = Account.fenced_get(lease, pk=account.pk)
        with transaction.atomic():  # not replicated yet
            read.fenced_update(lease, balance=95)
            assert (read.balance, read._state.db) == (95, "default")

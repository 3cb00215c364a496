"""`@distributed_lock` on plain and async functions: what it takes, when it lets go, what it refuses."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import IntegrityError, connections, transaction

from locking import (
    BackendUnavailable,
    LockKeyError,
    LockLost,
    LockNotAcquired,
    LockTransactionError,
    assert_locked,
    distributed_lock,
    get_lock,
)
from locking.core.lease import live_leases
from tests.locking.support.helpers import committed, elsewhere

pytestmark = pytest.mark.django_db(transaction=True)


def is_locked(name: str) -> bool:
    """Whether another thread finds the lock taken."""
    return elsewhere(get_lock(name).locked)


def must_not_run(*args: object, **kwargs: object) -> None:
    """The body of a function whose lock is taken."""
    pytest.fail("the body ran without its lock")


# --- holding ----------------------------------------------------------------------------------------------


def test_the_body_runs_under_its_lock_and_in_a_transaction(at_release: list[list[str]]) -> None:
    """The lock of the rendered name is held inside, and let go after the commit."""

    @distributed_lock(key="'order:'+<order_id>")
    def pay(order_id: int) -> str:
        assert_locked("order:7")
        assert transaction.get_connection().in_atomic_block
        Group.objects.create(name=f"paid {order_id}")
        return "done"

    assert pay(7) == "done"
    assert at_release == [["paid 7"]]
    assert not is_locked("order:7")


def test_several_keys_are_held_together() -> None:
    """`key=[…]` takes every name, duplicates once."""

    @distributed_lock(key=["'sku:'+<a>", "'sku:'+<b>"])
    def move(a: str, b: str) -> None:
        assert_locked("sku:x", "sku:y")

    move("x", "y")
    move("y", "x")

    @distributed_lock(key=["'sku:'+<a>", "'sku:'+<a>"])
    def twice(a: str) -> None:
        assert_locked("sku:x")

    twice("x")


def test_a_callable_key_names_the_lock() -> None:
    """The callable's return values are locked."""

    @distributed_lock(key=lambda skus: [f"sku:{sku}" for sku in skus])
    def sell(skus: list[str]) -> None:
        assert_locked("sku:a", "sku:b")

    sell(["b", "a"])


def test_without_options_the_arguments_name_the_lock() -> None:
    """The bare decorator locks the function's path and its arguments."""

    @distributed_lock
    def report(day: str) -> None:
        assert_locked(f"{report.__module__}.{report.__qualname__}:day=monday")

    report("monday")


def test_a_recursive_call_enters_its_own_lock() -> None:
    """A function that calls itself for the same thing nests, and commits once."""

    @distributed_lock(key="'tree'")
    def walk(depth: int) -> None:
        Group.objects.create(name=str(depth))
        if depth:
            walk(depth - 1)
        assert committed() == []

    walk(2)
    assert committed() == ["0", "1", "2"]
    assert not is_locked("tree")


def test_an_error_rolls_back_and_frees_the_lock() -> None:
    """The body's error comes out unchanged; nothing is stored and the lock is free."""

    @distributed_lock(key="'a'")
    def fail() -> None:
        Group.objects.create(name="row")
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fail()
    assert committed() == []
    assert not is_locked("a")


def test_a_swallowed_database_error_is_no_success() -> None:
    """A body that caught the error of its own transaction can't return as if it had worked."""

    @distributed_lock(key="'a'")
    def swallow() -> str:
        for _ in range(2):
            with suppress(IntegrityError):
                Group.objects.create(name="row")
        return "done"

    with pytest.raises(LockTransactionError, match="was caught"):
        swallow()


def test_without_atomic_the_body_opens_its_own_transactions(at_release: list[list[str]]) -> None:
    """`atomic=False` holds the lock around whatever the body commits itself."""

    @distributed_lock(key="'a'", atomic=False)
    def own() -> None:
        assert not transaction.get_connection().in_atomic_block
        with transaction.atomic():
            Group.objects.create(name="row")

    own()
    assert at_release == [["row"]]


def test_without_atomic_a_lost_lock_is_reported() -> None:
    """Where nothing can be rolled back, the loss of the lock is an error of its own."""

    @distributed_lock(key="'a'", atomic=False)
    def lose() -> None:
        for lease in live_leases():
            lease.lose()

    with pytest.raises(LockLost):
        lose()


def test_an_open_transaction_is_refused_and_explained() -> None:
    """Below `@transaction.atomic` the decorator refuses at the call, with the order that works."""

    @transaction.atomic
    @distributed_lock(key="'a'")
    def wrong() -> None:
        must_not_run()

    @distributed_lock(key="'a'")
    @transaction.atomic
    def right() -> None:
        Group.objects.create(name="row")

    with pytest.raises(LockTransactionError, match="@distributed_lock above @transaction"):
        wrong()
    right()
    assert committed() == ["row"]


@pytest.mark.parametrize("atomic", [True, False])
def test_with_and_without_atomic_an_open_transaction_is_refused(atomic: bool) -> None:
    """`atomic=False` is no way around: the outer transaction would still commit too late."""

    @distributed_lock(key="'a'", atomic=atomic)
    def function() -> None:
        must_not_run()

    with transaction.atomic(), pytest.raises(LockTransactionError):
        function()


def test_release_false_leaves_the_lock_to_its_ttl() -> None:
    """A second submit within the ttl is refused, also in the same thread, while the first succeeded."""

    @distributed_lock(key="'cart'", ttl=60, wait=0, release=False)
    def submit() -> str:
        return "placed"

    assert submit() == "placed"
    with pytest.raises(LockNotAcquired):
        submit()


@pytest.mark.parametrize("atomic", [True, False])
def test_release_false_holds_after_an_error_too(atomic: bool) -> None:
    """Whatever became of the first submit, the second waits for the ttl."""

    @distributed_lock(key="'cart'", ttl=60, wait=0, release=False, atomic=atomic)
    def submit() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        submit()
    assert is_locked("cart")


def test_a_renewed_lock_may_be_left_to_its_ttl() -> None:
    """It lasts while the body runs, however long, and its ttl beyond that."""

    @distributed_lock(key="'a'", ttl=60, renew=True, release=False)
    def quick() -> None: ...

    quick()
    assert is_locked("a")


# --- conflicts --------------------------------------------------------------------------------------------


@pytest.fixture
def taken() -> Iterator[str]:
    """A name that another thread holds for the whole test."""
    lease = elsewhere(get_lock("taken", ttl=60).acquire)
    yield "taken"
    elsewhere(lease.release)


@pytest.mark.parametrize("policy", ["auto", "raise", "retry"])
def test_a_function_raises_when_the_lock_is_taken(taken: str, policy: Any) -> None:
    """Outside views and tasks there is no answer and no retry, so it is an error."""
    function = distributed_lock(key="'taken'", wait=0, on_conflict=policy)(must_not_run)
    with pytest.raises(LockNotAcquired) as caught:
        function()
    assert caught.value.name == taken
    assert caught.value.retry_after is not None


def test_skip_returns_none_when_the_lock_is_taken(taken: str) -> None:
    """With `skip` another holder is fine."""
    assert distributed_lock(key="'taken'", wait=0, on_conflict="skip")(must_not_run)() is None


def test_skip_is_no_excuse_for_an_outage(backend_down: str) -> None:
    """When the backend is down no other holder is known."""
    with pytest.raises(BackendUnavailable):
        distributed_lock(key="'a'", on_conflict="skip", backend=backend_down)(must_not_run)()


def test_a_callable_decides(taken: str) -> None:
    """A callable gets the error and the call's arguments, and its result is the call's."""

    @distributed_lock(key="'taken'", wait=0, on_conflict=lambda error, order_id: (error.name, order_id))
    def pay(order_id: int) -> None:
        must_not_run()

    assert pay(7) == ("taken", 7)


def test_the_alias_sets_the_default_policy(taken: str, settings: Any) -> None:
    """`ON_CONFLICT` of the alias is what a decorator without a word of its own does."""
    settings.LOCKING = {"default": {**settings.LOCKING["default"], "ON_CONFLICT": "skip"}}
    assert distributed_lock(key="'taken'", wait=0)(must_not_run)() is None


def test_a_conflict_inside_the_body_is_the_bodys_own(taken: str) -> None:
    """The policy is about this lock; one that the body fails to get is an error of the body."""

    @distributed_lock(key="'mine'", on_conflict="skip")
    def function() -> None:
        get_lock("taken", wait=0, on_open_transaction="ignore").acquire()

    with pytest.raises(LockNotAcquired):
        function()


# --- unfinished work --------------------------------------------------------------------------------------


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("function", [generator, async_generator])
def test_generator_functions_are_refused(function: Any) -> None:
    """Their body would run after the lock was let go, so they are refused at decoration."""
    with pytest.raises(TypeError, match="generator function"):
        distributed_lock(key="'a'")(function)


async def coroutine_function() -> None: ...


@pytest.mark.parametrize("make", [generator, async_generator, coroutine_function])
def test_a_result_that_still_has_to_run_is_refused(make: Any) -> None:
    """A plain function that returns a generator or a coroutine has not done its work yet."""
    function = distributed_lock(key="'a'")(lambda: make())
    with pytest.raises(LockTransactionError, match="after the lock was released"):
        function()


def test_mutant_a_generator_that_is_let_out_works_without_its_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The body runs when its result is consumed, and the lock is free by then."""
    monkeypatch.setattr("locking.transactions.decorator._refuse_unfinished", lambda function, result: None)

    def work() -> Iterator[bool]:
        yield is_locked("a")

    assert list(distributed_lock(key="'a'")(lambda: work())()) == [False]


# --- what can't be decorated, and invalid options ---------------------------------------------


@pytest.mark.parametrize(
    ("target", "advice"),
    [
        (SimpleNamespace, "method_decorator"),
        (staticmethod(must_not_run), "below @staticmethod"),
        (classmethod(must_not_run), "below @classmethod"),
        (5, "decorates functions"),
    ],
)
def test_only_functions_are_decorated(target: Any, advice: str) -> None:
    """Anything else is refused with the way to do it."""
    with pytest.raises(TypeError, match=advice):
        distributed_lock(key="'a'")(target)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"ttl": 0}, ValueError, "ttl must be"),
        ({"ttl": "5"}, ValueError, "ttl must be"),
        ({"wait": -1}, ValueError, "wait must be"),
        ({"on_conflict": "rais"}, ValueError, "did you mean 'raise'"),
        ({"release": False}, ValueError, "give a ttl"),
        ({"release": False, "ttl": None}, ValueError, "give a ttl"),
        ({"renew": "yes"}, ValueError, "renew='yes' must be True or False"),
        ({"retry_for": -1}, ValueError, "retry_for must be"),
        ({"retry_for": "1h"}, ValueError, "retry_for must be a number of seconds or a timedelta"),
        ({"retry_for": 60, "on_conflict": "skip"}, ValueError, "retries nothing; leave one of them out"),
        ({"waits": 5}, TypeError, "did you mean wait"),
        ({"key": "order:+<id>"}, LockKeyError, "a term is expected here"),
        ({"key": "<nothing>"}, LockKeyError, "not a parameter"),
        ({"retries": -1}, ValueError, "from 0 to 100"),
        ({"retries": 1.5}, ValueError, "from 0 to 100"),
        ({"retries": 2, "atomic": False}, ValueError, "runs no transaction"),
    ],
)
def test_options_are_checked_at_decoration(options: Any, error: type[Exception], message: str) -> None:
    """A mistake in an option is reported when the module is imported, not at the first conflict."""

    def function(order_id: int) -> None: ...

    with pytest.raises(error, match=message):
        distributed_lock(**{"key": "'a'", **options})(function)


def test_a_positional_key_is_explained() -> None:
    """The key has a name, because the bare decorator takes the function there."""
    with pytest.raises(TypeError, match=r"write @distributed_lock\(key="):
        distributed_lock("'a'")  # type: ignore[call-overload]


def test_an_unknown_database_is_reported_at_the_call() -> None:
    """Settings need not be ready at import, so a database alias is checked at the first call."""
    with pytest.raises(ValueError, match="DATABASES has no alias 'nowhere'"):
        distributed_lock(key="'a'", using="nowhere")(must_not_run)()


def test_the_decorated_function_looks_like_itself() -> None:
    """Name, docstring and signature stay, for introspection and for other decorators."""

    @distributed_lock(key="'order:'+<order_id>")
    def pay(order_id: int, note: str = "") -> None:
        """Pay."""

    assert pay.__name__ == "pay"
    assert pay.__doc__ == "Pay."
    assert list(inspect.signature(pay).parameters) == ["order_id", "note"]


# --- asyncio ----------------------------------------------------------------------------------------------


async def test_an_async_body_runs_under_its_lock() -> None:
    """The lock is held in the task while the body awaits, and free afterwards."""

    @distributed_lock(key="'order:'+<order_id>")
    async def pay(order_id: int) -> str:
        await asyncio.sleep(0)
        assert_locked("order:7")
        return "done"

    assert inspect.iscoroutinefunction(pay)
    assert await pay(7) == "done"
    assert not await get_lock("order:7").alocked()


async def test_two_tasks_exclude_each_other() -> None:
    """The second task enters when the first is out, never while it is in."""
    inside: list[str] = []

    @distributed_lock(key="'a'", wait=10)
    async def section(name: str) -> None:
        inside.append(f"{name} in")
        await asyncio.sleep(0.01)  # the work, during which the other may come in
        inside.append(f"{name} out")

    await asyncio.gather(section("x"), section("y"))
    first, second = inside[0][0], inside[2][0]
    assert inside == [f"{first} in", f"{first} out", f"{second} in", f"{second} out"]


@pytest.mark.parametrize(("policy", "answer"), [("skip", None), (lambda error: error.name, "taken")])
async def test_an_async_conflict_follows_the_policy(taken: str, policy: Any, answer: object) -> None:
    """Policies are the same in async code."""

    @distributed_lock(key="'taken'", wait=0, on_conflict=policy)
    async def function() -> None:
        must_not_run()

    assert await function() == answer


async def test_an_async_policy_is_awaited(taken: str) -> None:
    """A coroutine function may decide as well."""

    async def policy(error: LockNotAcquired) -> str:
        return f"busy: {error.name}"

    @distributed_lock(key="'taken'", wait=0, on_conflict=policy)
    async def function() -> object:
        return must_not_run()  # type: ignore[func-returns-value]

    assert await function() == "busy: taken"


async def test_async_release_false_leaves_the_lock_to_its_ttl() -> None:
    """A second submit of the same task is refused as well."""

    @distributed_lock(key="'cart'", ttl=60, wait=0, release=False)
    async def submit() -> None: ...

    await submit()
    with pytest.raises(LockNotAcquired):
        await submit()


async def test_a_key_that_needs_the_database_is_read_in_a_thread() -> None:
    """An attribute that queries, such as `request.user`, works in an async function too."""

    class Lazy:
        @property
        def group(self) -> Group:
            return Group.objects.get(name="g")

    await sync_to_async(Group.objects.create)(name="g")

    @distributed_lock(key="'g:'+<lazy.group.name>")
    async def function(lazy: Lazy) -> None:
        assert_locked("g:g")

    await function(Lazy())
    await sync_to_async(connections.close_all)()


def test_atomic_is_refused_for_async_functions() -> None:
    """Django has no transactions in async code, and pretending would lose the promise."""

    async def function() -> None: ...

    with pytest.raises(LockTransactionError, match="no transactions in async code"):
        distributed_lock(key="'a'", atomic=True)(function)

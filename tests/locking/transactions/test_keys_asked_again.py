"""`key=<callable>`: the names are asked for again under the locks, and what changed is locked again."""

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group

from locking import (
    LockKeyError,
    LockNotAcquired,
    assert_locked,
    distributed_lock,
    get_lock,
    locked_transaction,
)
from locking.core import waits
from locking.testing import held_locks
from locking.testing.contract.base import begin
from locking.transactions import decorator
from tests.locking.backends.redis.topologies.servers import until
from tests.locking.support.helpers import committed, elsewhere

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("memory_locks")]


@pytest.fixture
def basket() -> list[str]:
    """What is bought: one article at first."""
    return ["sku:1"]


def checkout_of(basket: list[str], **options: Any) -> Callable[[], list[str]]:
    @distributed_lock(key=lambda: iter(basket), wait=20, **options)
    def checkout() -> list[str]:
        assert_locked(*basket)
        Group.objects.create(name="sold")
        return held_locks()

    found: Callable[[], list[str]] = checkout
    return found


def bought_while_it_changes(basket: list[str], **options: Any) -> list[str]:
    """Put a second article into the basket while its checkout waits for the lock of the first."""
    with get_lock("sku:1"):
        buyer = begin(lambda: elsewhere(checkout_of(basket, **options)))
        until(lambda: waits.waiters._waiting["default"], "the buyer waits")
        basket.append("sku:2")
    return buyer.result(timeout=30)


@pytest.mark.parametrize("options", [{}, {"retries": 1}, {"atomic": False}], ids=str)
def test_what_was_added_while_it_waited_is_locked_too(basket: list[str], options: Any) -> None:
    """The body runs once, under both locks, and afterwards none is held."""
    assert bought_while_it_changes(basket, **options) == ["sku:1", "sku:2"]
    assert committed() == ["sold"]
    assert held_locks() == []


def test_mutant_names_that_are_asked_for_once_are_not_enough(
    basket: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the second look the body runs with an article without a lock."""
    monkeypatch.setattr(decorator, "_refuse_others", lambda held, needed: None)
    with pytest.raises(Exception, match="sku:2"):
        bought_while_it_changes(basket)


def test_what_was_removed_needs_no_new_start() -> None:
    """More locks than needed are held: that is safe."""
    answers = [["a", "b"], ["a"]]
    seen: list[list[str]] = []

    @distributed_lock(key=lambda: answers.pop(0))
    def work() -> None:
        seen.append(held_locks())

    work()
    assert seen == [["a", "b"]]


def test_the_second_look_sees_what_others_have_committed() -> None:
    """It runs inside the transaction, behind the lock: nothing that it reads is from before."""
    asked: list[list[str]] = []

    def names() -> list[str]:
        found = ["groups", *Group.objects.order_by("name").values_list("name", flat=True)]
        asked.append(found)
        if len(asked) == 1:
            elsewhere(lambda: Group.objects.create(name="late"))
        return found

    @distributed_lock(key=names)
    def work() -> list[str]:
        return held_locks()

    assert work() == ["groups", "late"]


def test_keys_that_never_rest_are_a_conflict() -> None:
    """After the second acquisition the call is refused, and nothing is held."""
    number = iter(range(1000))

    @distributed_lock(key=lambda: [f"a:{next(number)}"])
    def work() -> None:
        raise AssertionError("ran under a lock that it doesn't need")

    with pytest.raises(LockNotAcquired, match="its keys changed twice"):
        work()
    assert held_locks() == []


def test_an_enclosing_transaction_covers_its_own_names_only(basket: list[str]) -> None:
    """A second article inside a transaction that has locked the first is refused, not forgotten."""
    answers = [["sku:1"], ["sku:1", "sku:2"]]

    @distributed_lock(key=lambda: answers.pop(0))
    def inner() -> None:
        raise AssertionError("ran without sku:2")

    with pytest.raises(Exception, match="has only 'sku:1'"), locked_transaction("sku:1"):
        inner()


async def test_an_async_function_asks_again_as_well() -> None:
    """The same for asyncio; keys that need the database are asked for in a thread."""
    answers = [["a"], ["a", "b"], ["b", "a"]]

    @distributed_lock(key=lambda: answers.pop(0))
    async def work() -> list[str]:
        return await sync_to_async(held_locks)()

    assert await work() == ["a", "b"]


@pytest.mark.parametrize(
    ("answer", "reported"),
    [
        ([], "returned no name; add one that is always there"),
        (None, "return a str that isn't empty, or a list of them"),
        ([""], "return a str that isn't empty"),
    ],
)
def test_an_answer_that_locks_nothing_is_refused(answer: Any, reported: str) -> None:
    """Before the body, with the reason and the fix."""

    @distributed_lock(key=lambda: answer)
    def work() -> None:
        raise AssertionError("ran without a lock")

    with pytest.raises(LockKeyError, match=reported):
        work()


def test_locks_that_stay_are_asked_for_once() -> None:
    """With `release=False` what was locked by mistake would stay locked."""
    answers = [["a"], ["b"]]
    distributed_lock(key=lambda: answers.pop(0), release=False, ttl=3)(lambda: None)()
    assert answers == [["b"]]


@pytest.mark.parametrize("answer", [None, [], [""], [None], ""])
def test_what_names_no_lock_is_refused(answer: Any) -> None:
    """No name, None or an empty one: the body doesn't run without a lock."""
    work = distributed_lock(key=lambda: answer)(lambda: pytest.fail("ran without a lock"))
    with pytest.raises(LockKeyError, match="returned"):
        work()

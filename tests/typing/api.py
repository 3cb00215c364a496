"""How the typed API looks to a user: checked by mypy, never run."""

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, assert_type

from django.http import HttpRequest, HttpResponse

from locking import (
    Lease,
    Lock,
    distributed_lock,
    get_lock,
    locked_transaction,
)


@distributed_lock(key="'order:'+<order_id>")
def pay(order_id: int, note: str = "") -> str:
    return note


@distributed_lock
def bare(order_id: int) -> int:
    return order_id


@distributed_lock(key=["'sku:'+<a>", "'sku:'+<b>"], on_conflict="skip", wait=0)
def move(a: str, b: str) -> int:
    return 1


@distributed_lock(key=lambda order_id: f"order:{order_id}", on_conflict=lambda error, order_id: error.name)
def computed(order_id: int) -> str:
    return ""


@distributed_lock(key="'a'", retry_for=timedelta(hours=2), ttl=timedelta(minutes=1), renew=True)
def patient(order_id: int) -> int:
    return order_id


@distributed_lock(key="'a'", ttl=3, release=False)
async def later(order_id: int) -> bytes:
    return b""


@distributed_lock(key="'a'", on_conflict="skip")
async def maybe(order_id: int) -> bytes:
    return b""


@distributed_lock(key="'order:'+<pk>", using=["default", "archive"], ttl=None, wait=None)
def view(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse()


assert_type(pay(1), str)
assert_type(pay(1, note="x"), str)
assert_type(bare(1), int)
assert_type(move("a", "b"), int | None)
assert_type(computed(1), str)
assert_type(patient(1), int)
assert_type(view(HttpRequest(), 1), HttpResponse)

pay("1")  # type: ignore[arg-type]
pay()  # type: ignore[call-arg]
bare(1, 2)  # type: ignore[call-arg]
distributed_lock("'a'")  # type: ignore[call-overload]
distributed_lock(key="'a'", waits=3)  # type: ignore[call-overload]
distributed_lock(key="'a'", on_conflict="rais")  # type: ignore[call-overload]
distributed_lock(key="'a'", retry_for="1h")  # type: ignore[call-overload]
distributed_lock(key=5)  # type: ignore[call-overload]


async def coroutines() -> None:
    coroutine: Coroutine[Any, Any, bytes] = later(1)
    assert_type(await coroutine, bytes)
    assert_type(await maybe(1), bytes | None)
    async with await get_lock("a").aacquire() as lease:
        assert_type(lease, Lease)


def statements() -> None:
    lock = get_lock("order:42", ttl=10, wait=3)
    assert_type(lock, Lock)
    with lock as lease:
        assert_type(lease, Lease)
        assert_type(lease.fencing_token, int)
    assert_type(lock.try_acquire(), Lease | None)
    with locked_transaction("order:42", using=["default"]) as held:
        assert_type(held, Lease)


def passed_on(function: Callable[[int], int]) -> Callable[[int], int]:
    """A decorated function is as good as the plain one."""
    return distributed_lock(key="'a'")(function)

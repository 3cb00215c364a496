"""Hand-over of a held lock to another process: `hand_over(lease)` there, `adopt(ticket)` here.

The ticket names the hold. Its giver stops renewing the lease and leaves it to the taker, under the same owner
and with the same fencing token. That must happen once, though a message may be delivered twice. So the taker
also acquires a *claim*, a lock whose name is made of the owner. It lasts three times as long as the lease, is
renewed with it and released after it: as long as the hold may live, its claim does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from django.core import signing

from locking.backends.base import Grant
from locking.core.kinds import CLASSES
from locking.core.lease import Lease, MultiLease, SingleLease
from locking.core.liveness import registration
from locking.core.lock import SingleLock, get_lock
from locking.core.options import CheckedOptions
from locking.exceptions import LockKeyError, LockLost, LockNotAcquired, LockNotOwned, LockNotSupported
from locking.keys.names import UNSET, Unset, check_ttl
from locking.utils.clock import now
from locking.utils.ownership import current_context

SALT: Final = "locking.handover"

CLAIM: Final = 3.0
"""How many times as long as its lease a claim lasts."""

NOTED: Final = 24 * 3600.0
"""Seconds for which the giver's file says that others must leave the hold alone when the giver is dead."""


def hand_over(lease: Lease, *, ttl: float = 60.0) -> str:
    """Give a held lock away to the process that adopts the returned ticket.

    The lock stays locked for `ttl` seconds, in which the ticket has to be adopted. The end of the giver's own
    block then releases nothing.

    Args:
        lease: held by the running thread or task, once.
        ttl: seconds for which the ticket is good.

    Returns:
        The ticket: text, signed with `SECRET_KEY`, to send with a message.

    Raises:
        LockNotSupported: on this engine a hold ends with its process. LockNotOwned: it isn't held, or was
            entered several times. LockLost: it had ended.

    Example:
        >>> with locked_transaction("order:42") as lease:  # doctest: +SKIP
        ...     on_commit(lambda: pack.delay(42, hand_over(lease)))
    """
    check_ttl(ttl)
    if isinstance(lease, AdoptedLease):
        raise LockNotSupported(f"the lock {lease.name!r} was handed over once: acquire it anew to pass it on")
    for single in lease.leases:
        _refuse_what_cannot_be_given(single)
    lease.extend(ttl)
    for single in lease.leases:
        single.leave_to_expire()
        single.handed_over = True
        registration.keep(single.owner, time.time() + NOTED)  # noqa: TID251 this host's own dates
    return signing.dumps([_as_record(single) for single in lease.leases], salt=SALT)


def _refuse_what_cannot_be_given(single: SingleLease) -> None:
    single.ensure_held()
    if not single.backend.supports_handover:
        raise single.backend.unsupported("hand a held lock over to another process")
    if single.depth > 1:
        raise LockNotOwned(
            f"the lock {single.name!r} was entered {single.depth} times; hand it over from its outer block"
        )


def _as_record(single: SingleLease) -> dict[str, Any]:
    alias = single.backend.settings.alias
    kind = single.backend.alias.removeprefix(alias).lstrip("/") or "lock"
    return {"backend": alias, "kind": kind, "name": single.name, "owner": single.owner, "token": single.token}


def adopt(
    ticket: str, *, ttl: float | Unset | None = UNSET, on_lost: Callable[[Lease], None] | None = None
) -> Lease:
    """Continue the hold that `hand_over` gave away: same locks, same fencing tokens. Works once per ticket.

    Args:
        ticket: what `hand_over` returned.
        ttl: seconds of the lease from now on; None = `WATCHDOG_TTL`, kept alive. Default: the alias's `TTL`.
        on_lost: called with the lease, in a thread of its own, when it is found lost.

    Returns:
        The lease, of the running thread. In a `with` statement it is released at the end of the block.

    Raises:
        LockNotOwned: the ticket was adopted already. LockLost: its time was over, or the lock was broken.
        LockKeyError: it is no ticket of this project. BackendUnavailable: nobody answered.

    Example:
        >>> @shared_task  # doctest: +SKIP
        ... def pack(order_id, ticket):
        ...     with adopt(ticket):
        ...         ...
    """
    taken: list[tuple[SingleLease, SingleLease]] = []
    try:
        for record in _records(ticket):
            taken.append(_take(record, ttl, on_lost))
    except BaseException:
        for claim, hold in reversed(taken):
            hold.release()
            claim.release()
        raise
    return AdoptedLease([claim for claim, _ in taken], [hold for _, hold in taken])


def _records(ticket: str) -> list[dict[str, Any]]:
    try:
        return cast("list[dict[str, Any]]", signing.loads(ticket, salt=SALT))
    except signing.BadSignature as error:
        raise LockKeyError(
            f"{ticket[:40]!r}… is not a ticket that hand_over() made with this SECRET_KEY"
        ) from error


def _take(
    record: dict[str, Any], ttl: float | Unset | None, on_lost: Callable[[Lease], None] | None
) -> tuple[SingleLease, SingleLease]:
    kind = record["kind"]
    permits = 1 if kind == "semaphore" else None  # any number: the permit is there already
    options = CheckedOptions(backend=record["backend"], kind=kind, permits=permits, ttl=ttl, on_lost=on_lost)
    lock = CLASSES[options.kind](record["name"], options.engine(), options)
    claim = _claim(record, lock)
    try:
        return claim, _continued(record, lock)
    except BaseException:
        claim.release()
        raise


def _claim(record: dict[str, Any], lock: SingleLock) -> SingleLease:
    name = f"handed-over:{record['owner']}"
    claim = get_lock(name, ttl=CLAIM * lock.ttl, backend=record["backend"], on_open_transaction="ignore")
    assert isinstance(claim, SingleLock)
    claim.renewed = lock.renewed
    try:
        (lease,) = claim.acquire(wait=0).leases
    except LockNotAcquired as error:
        raise LockNotOwned(f"the ticket of the lock {record['name']!r} was adopted already") from error
    return lease


def _continued(record: dict[str, Any], lock: SingleLock) -> SingleLease:
    begun = now()
    lease = lock.continued(record["owner"], Grant(record["token"], begun), current_context())
    if lease is None:
        raise LockLost(
            f"the lock {record['name']!r} that was handed over is held no more: its ticket was adopted later"
            " than its ttl allows, or the lock was broken"
        )
    return lease


class AdoptedLease(MultiLease):
    """The leases that were handed over, and the claims that make each of them this process's alone."""

    def __init__(self, claims: Sequence[SingleLease], holds: Sequence[SingleLease]) -> None:
        super().__init__(holds)
        self._claims, self._holds = tuple(claims), tuple(holds)
        self._leases = (*self._claims, *self._holds)

    @property
    def leases(self) -> Sequence[SingleLease]:
        return self._holds

    def extend(self, ttl: float) -> None:
        for claim in self._claims:
            claim.extend(CLAIM * ttl)
        for hold in self._holds:
            hold.extend(ttl)

    async def aextend(self, ttl: float) -> None:
        for claim in self._claims:
            await claim.aextend(CLAIM * ttl)
        for hold in self._holds:
            await hold.aextend(ttl)

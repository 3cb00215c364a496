"""Hand-over of a held lock to another process: `hand_over(lease)` there, `adopt(ticket)` here.

The ticket names the hold. Its giver stops renewing the lease and leaves it to the taker, under the same owner
and with the same fencing token. That must happen once, though a message may be delivered twice. So the taker
also acquires a *claim*, a lock whose name is made of the owner. It lasts three times as long as the lease, is
renewed with it and released after it: as long as the hold may live, its claim does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

from django.core import signing

from locking.core.kinds import CLASSES
from locking.core.lease import Lease, MultiLease, SingleLease
from locking.core.liveness import registration
from locking.core.lock import SingleLock, get_lock
from locking.core.options import CheckedOptions
from locking.exceptions import LockKeyError, LockLost, LockNotAcquired, LockNotOwned, LockNotSupported
from locking.keys.names import UNSET, Unset, check_ttl
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
            entered several times. LockLost: it had ended. BackendUnavailable: nobody answered.

    Example:
        >>> with locked_transaction("order:42") as lease:  # doctest: +SKIP
        ...     on_commit(lambda: pack.delay(42, hand_over(lease)))
    """
    _check(lease, ttl)
    lease.extend(ttl)
    _leave(lease)
    for single in lease.leases:
        single.backend.detach(single.key, single.owner, ttl)
    return _ticket_of(lease)


async def ahand_over(lease: Lease, *, ttl: float = 60.0) -> str:
    """`hand_over` for asyncio."""
    _check(lease, ttl)
    await lease.aextend(ttl)
    _leave(lease)
    for single in lease.leases:
        await single.backend.adetach(single.key, single.owner, ttl)
    return _ticket_of(lease)


def _check(lease: Lease, ttl: float) -> None:
    """Refuse what can't be handed over."""
    check_ttl(ttl)
    if isinstance(lease, AdoptedLease):
        raise LockNotSupported(f"the lock {lease.name!r} was handed over once: acquire it anew to pass it on")
    for single in lease.leases:
        _check_single(single)


def _check_single(single: SingleLease) -> None:
    single.ensure_held()
    if not single.backend.supports_handover:
        raise single.backend.unsupported(
            f"hand a held lock over to another process: a hold ends with {single.backend.bound_to}"
        )
    if single.depth > 1:
        raise LockNotOwned(
            f"the lock {single.name!r} was entered {single.depth} times; hand it over from its outer block"
        )


def _leave(lease: Lease) -> None:
    """Stop renewing, and have nothing of this process end the hold."""
    for single in lease.leases:
        single.leave_to_expire()
        single.handed_over = True
        registration.keep(single.owner, time.time() + NOTED)  # noqa: TID251 this host's own dates


def _ticket_of(lease: Lease) -> str:
    return signing.dumps([_as_record(single) for single in lease.leases], salt=SALT)


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
    parts = _parts(ticket, ttl, on_lost)
    claims, holds = list[SingleLease](), list[SingleLease]()
    with ExitStack() as undo:
        for part in parts:
            with part.claimed_once():
                claims.extend(undo.enter_context(part.claim().acquire(wait=0)).leases)
            hold = part.held(part.lock.continued(part.owner, part.token, current_context()))
            holds.append(undo.enter_context(hold))
        undo.pop_all()
    return AdoptedLease(claims, holds)


async def aadopt(
    ticket: str, *, ttl: float | Unset | None = UNSET, on_lost: Callable[[Lease], None] | None = None
) -> Lease:
    """`adopt` for asyncio.

    Returns:
        The lease, of the running task. In an `async with` statement it is released at the end of the block.

    Example:
        >>> async def pack(order_id, ticket):  # doctest: +SKIP
        ...     async with await aadopt(ticket):
        ...         ...
    """
    parts = _parts(ticket, ttl, on_lost)
    claims, holds = list[SingleLease](), list[SingleLease]()
    async with AsyncExitStack() as undo:
        for part in parts:
            with part.claimed_once():
                claim = await part.claim().aacquire(wait=0)
            claims.extend((await undo.enter_async_context(claim)).leases)
            hold = part.held(await part.lock.acontinued(part.owner, part.token, current_context()))
            holds.append(await undo.enter_async_context(hold))
        undo.pop_all()
    return AdoptedLease(claims, holds)


@dataclass(frozen=True, slots=True)
class Part:
    """One of the locks of a ticket.

    Attributes:
        lock: the lock itself, as the taker holds it.
        backend: alias in `LOCKING`.
        owner: the identity that proves the hold.
        token: its fencing token.
    """

    lock: SingleLock
    backend: str
    owner: str
    token: int

    def claim(self) -> SingleLock:
        """Return the lock that only one taker of the ticket gets."""
        name = f"handed-over:{self.owner}"
        ttl = CLAIM * self.lock.ttl
        claim = get_lock(name, ttl=ttl, backend=self.backend, on_open_transaction="ignore")
        assert isinstance(claim, SingleLock)
        claim.renewed = self.lock.renewed
        return claim

    @contextmanager
    def claimed_once(self) -> Iterator[None]:
        """Tell a second taker what has happened."""
        try:
            yield
        except LockNotAcquired as error:
            raise LockNotOwned(f"the ticket of the lock {self.lock.name!r} was adopted already") from error

    def held(self, lease: SingleLease | None) -> SingleLease:
        """Return the lease, if there is one."""
        if lease is None:
            raise LockLost(
                f"the lock {self.lock.name!r} that was handed over is held no more: its ticket was adopted"
                " later than its ttl allows, or the lock was broken"
            )
        return lease


def _parts(ticket: str, ttl: float | Unset | None, on_lost: Callable[[Lease], None] | None) -> list[Part]:
    return [_part(record, ttl, on_lost) for record in _records(ticket)]


def _part(record: dict[str, Any], ttl: float | Unset | None, on_lost: Callable[[Lease], None] | None) -> Part:
    kind = record["kind"]
    permits = 1 if kind == "semaphore" else None  # any number: the permit is there already
    options = CheckedOptions(backend=record["backend"], kind=kind, permits=permits, ttl=ttl, on_lost=on_lost)
    lock = CLASSES[options.kind](record["name"], options.engine(), options)
    return Part(lock, record["backend"], record["owner"], record["token"])


def _records(ticket: str) -> list[dict[str, Any]]:
    try:
        return cast("list[dict[str, Any]]", signing.loads(ticket, salt=SALT))
    except signing.BadSignature as error:
        raise LockKeyError(
            f"{ticket[:40]!r}… is not a ticket that hand_over() made with this SECRET_KEY"
        ) from error


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

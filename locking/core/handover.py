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
from typing import Any, Final

from django.core import signing

from locking.backends.base import Grant
from locking.core.kinds import CLASSES
from locking.core.lease import (
    Lease,
    MultiLease,
    SingleLease,
    State,
    arelease_each,
    held_by,
    raise_worst,
    release_each,
)
from locking.core.liveness import registration
from locking.core.lock import SingleLock, get_lock
from locking.core.options import CheckedOptions, Kind
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
        single.ensure_held()
        if not single.backend.supports_handover:
            raise single.backend.unsupported(
                f"hand a held lock over to another process: a hold ends with {single.backend.bound_to}"
            )
        if single.depth > 1:
            times = f"was entered {single.depth} times"
            raise LockNotOwned(f"the lock {single.name!r} {times}; hand it over from its outer block")


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
    parts = _parts(ticket, ttl=ttl, on_lost=on_lost)
    claims, holds = list[SingleLease](), list[SingleLease]()
    with ExitStack() as undo:
        for part in parts:
            with part.claimed_once() as claim:
                claims.extend(undo.enter_context(claim.acquire(wait=0)).leases)
            since = part.begin()
            held = part.lock.backend.adopt(part.lock.key, part.owner, part.token, part.lock.ttl)
            holds.append(undo.enter_context(part.lease(held, since)))
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
    parts = _parts(ticket, ttl=ttl, on_lost=on_lost)
    claims, holds = list[SingleLease](), list[SingleLease]()
    async with AsyncExitStack() as undo:
        for part in parts:
            with part.claimed_once() as claim:
                claims.extend((await undo.enter_async_context(await claim.aacquire(wait=0))).leases)
            since = part.begin()
            held = await part.lock.backend.aadopt(part.lock.key, part.owner, part.token, part.lock.ttl)
            holds.append(await undo.enter_async_context(part.lease(held, since)))
        undo.pop_all()
    return AdoptedLease(claims, holds)


@dataclass(frozen=True, slots=True)
class Part:
    """One of the locks of a ticket.

    Attributes:
        lock: the lock itself, as the taker holds it.
        owner: the identity that proves the hold.
        token: its fencing token.
    """

    lock: SingleLock
    owner: str
    token: int

    def claim(self) -> SingleLock:
        """Return the lock that only one taker of the ticket gets."""
        name, alias = f"handed-over:{self.owner}", self.lock.backend.settings.alias
        claim = get_lock(name, ttl=CLAIM * self.lock.ttl, backend=alias, on_open_transaction="ignore")
        assert isinstance(claim, SingleLock)
        claim.renewed = self.lock.renewed
        return claim

    @contextmanager
    def claimed_once(self) -> Iterator[SingleLock]:
        """Give the claim, and tell a second taker what has happened; its own thread or task is one, too."""
        claim = self.claim()
        try:
            if held_by(current_context(), claim.backend.alias, claim.key) is not None:
                raise LockNotAcquired(claim.name, waited=0.0, backend=claim.backend.alias)
            yield claim
        except LockNotAcquired as error:
            raise LockNotOwned(f"the ticket of the lock {self.lock.name!r} was adopted already") from error

    def begin(self) -> float:
        """Note that the hold will be this process's; return the time before it is requested."""
        self.lock.act_as(self.owner)
        registration.enter(self.lock.backend.settings.alias, self.lock.backend.alias)
        return now()

    def lease(self, held: bool, since: float) -> SingleLease:
        """Return the lease of a hold that was adopted by a request sent at `since`."""
        grant = Grant(self.token, since)
        if not held or self.lock._is_late(grant):
            raise LockLost(
                f"the lock {self.lock.name!r} that was handed over is held no more: its ticket was adopted"
                " later than its ttl allows, the answer came too late for the ttl, or the lock was broken"
            )
        registration.act(self.owner)
        return self.lock._leased(self.owner, grant, current_context(), since)


def _parts(ticket: str, **options: Any) -> list[Part]:
    try:
        records = signing.loads(ticket, salt=SALT)
    except signing.BadSignature as error:
        raise LockKeyError(
            f"{ticket[:40]!r}… is not a ticket that hand_over() made with this SECRET_KEY"
        ) from error
    return [_part(**record, options=options) for record in records]


def _part(backend: str, kind: Kind, name: str, owner: str, token: int, options: dict[str, Any]) -> Part:
    permits = 1 if kind == "semaphore" else None  # any number: the permit is there already
    checked = CheckedOptions(backend=backend, kind=kind, permits=permits, **options)
    return Part(CLASSES[kind](name, checked.engine(), checked), owner, token)


class AdoptedLease(MultiLease):
    """The leases that were handed over, and the claims that make each of them this process's alone."""

    def __init__(self, claims: Sequence[SingleLease], holds: Sequence[SingleLease]) -> None:
        super().__init__(holds)
        self._claims, self._holds = tuple(claims), tuple(holds)
        self._leases = (*self._claims, *self._holds)

    @property
    def leases(self) -> Sequence[SingleLease]:
        return self._holds

    def release(self) -> None:
        errors = release_each(self._holds)
        raise_worst([*errors, *release_each(self._free_claims())])

    async def arelease(self) -> None:
        errors = await arelease_each(self._holds)
        raise_worst([*errors, *await arelease_each(self._free_claims())])

    def _free_claims(self) -> Sequence[SingleLease]:
        """Return the claims to release; a hold that may live on, for nobody answered, keeps its claim."""
        for claim, hold in zip(self._claims, self._holds, strict=True):
            if hold.unreleased:
                claim.leave_to_expire()
        return [claim for claim in self._claims if claim.state is not State.RELEASED]

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

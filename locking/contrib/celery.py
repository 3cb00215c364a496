"""Celery: whose task is running, how it is tried again, and tasks that are queued once at a time.

`locking` imports this only when Celery is in use; `UniqueTask` is the one name for projects.
"""

from __future__ import annotations

import inspect
import logging
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, Final, Literal, NoReturn

from celery import current_task
from celery.contrib.django.task import DjangoTask
from celery.exceptions import Retry
from celery.result import AsyncResult
from celery.signals import task_revoked
from celery.utils import uuid

from locking.backends.base import BaseLockBackend, Busy
from locking.conf import LONGEST_COUNTDOWN
from locking.core.handler import DEFAULT_ALIAS, locks
from locking.core.lease import Lease
from locking.core.lock import Lock, SingleLock, get_lock
from locking.core.pending_release import release_retrier
from locking.exceptions import BackendUnavailable, LockError, LockNotAcquired
from locking.keys.names import Seconds, check_ttl
from locking.keys.template import KeyBuilder, KeySource, key_builder
from locking.transactions.tasks import AN_HOUR
from locking.utils.ownership import client_of_work, is_owner_of, owner_of_work, work_of

__all__ = ["UniqueTask"]

logger = logging.getLogger(__name__)

WAITED: Final = "locking_waited"
"""The header of a retried task's message: how often it has come back for its lock, after how many seconds."""

CHOICES: Final = {"unique_conflict": ("raise", "skip", "result"), "unique_until": ("end", "start")}


def running_task(function: Callable[..., Any]) -> CeleryTask | None:
    """Return the Celery task that is running, if `function` is its body and not merely called by it."""
    if not current_task or inspect.unwrap(current_task.run) is not inspect.unwrap(function):
        return None
    return CeleryTask(current_task)


class CeleryTask:
    """A running task, as locks see it; see `locking.transactions.tasks.RunningTask`."""

    def __init__(self, task: Any) -> None:
        self.task = task

    @property
    def redelivered(self) -> bool:
        """Whether the broker has delivered this task before."""
        return bool((self.task.request.delivery_info or {}).get("redelivered"))

    def act_for(self, lock: Lock) -> None:
        """Have the task take the lock in its own name.

        A redelivered one takes it over from the delivery before. That one is mostly dead (its worker was
        killed); if it lives (it ran longer than the broker's visibility time-out), it has lost the lock and
        rolls back.
        """
        if self.task.request.id:
            lock.act_for(client_of_work(self.task.request.id), take_over=self.redelivered)

    def retry(self, error: LockError, retry_for: float | None = AN_HOUR) -> NoReturn:
        """Send the task back to its queue until it has waited there for `retry_for` seconds, then raise.

        Waiting for a lock isn't failing, so the task's own retries aren't counted. How often and how long it
        has waited goes along in the message: a worker that is killed loses neither.
        """
        request = self.task.request
        tries, waited = request.get(WAITED) or (request.headers or {}).get(WAITED) or (0, 0.0)
        if retry_for is not None and waited >= retry_for:
            error.add_note(f"the task was retried {tries} times in {waited:.0f} s (retry_for={retry_for:g})")
            raise error
        seconds = countdown(tries, getattr(error, "retry_after", None), getattr(error, "estimate", None))
        if not request.is_eager:  # that doesn't wait for its countdown: only its own retries end it
            request.retries -= 1
        headers = {**(request.headers or {}), WAITED: (tries + 1, waited + seconds)}
        raise self.task.retry(exc=error, countdown=seconds, headers=headers)


def countdown(tries: int, lease_left: float | None, usual: float | None = None) -> float:
    """Return the seconds until the next try: at random, up to a limit that doubles with each of `tries`, and
    up to what is left of the holder's lease, or ten times the usual hold, where these are known.
    """
    limits = [LONGEST_COUNTDOWN, 2.0 ** min(tries + 1, 10)]
    limits += [max(lease_left, 1.0)] if lease_left is not None else []
    limits += [max(10 * usual, 2.0)] if usual is not None else []
    return random.uniform(0.1, min(limits))  # noqa: S311 - spreads load, hides nothing


class UniqueTask(DjangoTask):  # type: ignore[type-arg]
    """A task that is in the queue or running at most once for each key: `base=UniqueTask`.

    The lock is taken by `apply_async`, handed to whichever worker runs the task, kept alive while it runs and
    over its retries, and released when it has ended, failed, expired or been revoked. A second `apply_async`
    meanwhile sends nothing.

    With `unique_until="start"` it is released when a worker begins with the task: what changes from then on
    may queue the task again, which may run beside the first.

    This saves work; it is no substitute for `@distributed_lock` around what must be exclusive, which may be
    on the same function: a task that waits longer than `unique_for` may be queued a second time.

    Example:
        >>> @shared_task(base=UniqueTask, unique_key="report:{year}", unique_conflict="skip")
        ... def report(year): ...
    """

    abstract = True
    #: a template over the task's arguments (see `locking.keys.template`), or a callable that gets them and
    #: returns a name; with None it is made of the function's dotted path and its arguments
    unique_key: ClassVar[KeySource | None] = None
    unique_for: ClassVar[Seconds] = 3600.0  #: seconds after which its place ends, should the broker lose it
    unique_until: ClassVar[Literal["end", "start"]] = "end"  #: `start` lets one wait beside the one that runs
    #: `raise` LockNotAcquired from `apply_async`, `skip` and return None, or the AsyncResult (`result`)
    unique_conflict: ClassVar[Literal["raise", "skip", "result"]] = "raise"
    #: alias of one whose holds other processes can take over (Redis, Redlock, rows of a database or etcd)
    unique_backend: ClassVar[str] = DEFAULT_ALIAS

    def __init__(self) -> None:
        check_ttl(self.unique_for, source="unique_for")
        for option, choices in CHOICES.items():
            if (chosen := getattr(self, option)) not in choices:
                raise ValueError(f"{option}={chosen!r} must be one of {', '.join(map(repr, choices))}")
        self._names  # noqa: B018 - an invalid key is reported when the task is defined

    @cached_property
    def _names(self) -> KeyBuilder:
        return key_builder(self.run, self.unique_key)

    def _place(self, task_id: str, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> QueueSlot:
        names = self._names(tuple(args or ()), dict(kwargs or {}))
        if len(names) != 1:
            raise ValueError(f"unique_key of {self.name} gave {len(names)} names; give one")
        return QueueSlot(names[0], locks[self.unique_backend], task_id, check_ttl(self.unique_for))

    def apply_async(  # type: ignore[override]
        self, args: Any = None, kwargs: Any = None, task_id: str | None = None, *more: Any, **options: Any
    ) -> AsyncResult[Any] | None:
        """Queue the task unless it is queued or running already; see Celery for the arguments.

        Raises:
            LockNotAcquired: it is, and `unique_conflict` is `raise`; or it is `result`, and what holds the
                lock isn't such a task, or one whose `task_id` isn't a UUID of version 4, as Celery's are.
            BackendUnavailable: the backend didn't answer; nothing was sent.
        """
        task_id = task_id or uuid()
        place = self._place(task_id, args, kwargs)
        try:
            place.reserve()
        except LockNotAcquired as refused:
            if self.request.id == task_id:
                pass  # its own retry
            elif self.unique_conflict == "skip":
                return None
            elif self.unique_conflict == "result" and (queued := work_of(refused.holder or "")):
                return self.AsyncResult(queued)
            else:
                raise
        try:
            return super().apply_async(args, kwargs, task_id, *more, **options)
        except Retry:  # an eager task that tries again: it has kept its place
            raise
        except BaseException:
            place.withdraw()
            raise

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run with the place that `apply_async` took; called as a function it is one, without a lock."""
        if self.request.called_directly:
            return super().__call__(*args, **kwargs)
        place = self._place(str(self.request.id), self.request.args, self.request.kwargs)
        if self.unique_until == "start":
            try:
                place.give_up()  # before the task reads anything: what changes later must queue another one
            except LockError as error:
                CeleryTask(self).retry(error)
            return self.run(*args, **kwargs)
        try:
            lease = place.take(take_over=CeleryTask(self).redelivered).acquire(wait=0)
        except (LockNotAcquired, BackendUnavailable) as error:
            CeleryTask(self).retry(error)  # the place was lost while queued: wait for the present holder
        end = lease.release
        try:
            return self.run(*args, **kwargs)
        except Retry:
            end = partial(place.keep, lease)
            raise
        finally:
            _end(end)


class QueueSlot:
    """A queued task's hold of its lock; it outlives the process that took it."""

    def __init__(self, name: str, backend: BaseLockBackend, task_id: str, seconds: float) -> None:
        self.name, self.backend, self.task_id, self.seconds = name, backend, task_id, seconds
        self.client_id = client_of_work(task_id)
        self.key = backend.key(name)
        self._reserved: str | None = None  # the owner under which this object has taken the place

    def reserve(self) -> None:
        """Take the lock for the time in the queue; asked by its own task again, it keeps that.

        Without an answer the lock is released, in case it was acquired all the same.
        """
        self._reserved = owner = self._new_owner()
        try:
            outcome = self.backend.try_acquire(self.key, owner, self.seconds)
            if isinstance(outcome, Busy) and outcome.outage is not None:
                raise outcome.outage
        except BaseException as error:
            if not isinstance(error, BackendUnavailable) or error.sent:
                release_retrier.schedule(self.backend, self.key, owner, self.seconds)
            raise
        if not isinstance(outcome, Busy):
            return
        self._reserved, holder = None, outcome.holder
        if holder is None or not is_owner_of(self.client_id, holder):
            alias, left = self.backend.alias, outcome.retry_after
            raise LockNotAcquired(self.name, waited=0.0, backend=alias, holder=holder, retry_after=left)
        if not self.backend.extend(self.key, holder, self.seconds):
            self.reserve()  # its place ended just now

    def withdraw(self) -> None:
        """Release the place of a task that was not sent; a failure masks no error, and is retried."""
        try:
            self.give_up()
        except LockError as error:
            logger.warning("the place of a unique task that was not sent is released later: %s", error)
            if self._reserved is not None:
                release_retrier.schedule(self.backend, self.key, self._reserved, self.seconds)

    def take(self, *, take_over: bool) -> SingleLock:
        """Return the lock as the running task has it: without a gap, or away from an earlier delivery."""
        lock = get_lock(self.name, ttl=None, backend=self.backend.alias, on_open_transaction="ignore")
        assert isinstance(lock, SingleLock)
        lock.act_for(self.client_id, take_over=take_over)
        lock._new_owner = self._new_owner  # the task's id can be read from it
        if (held_as := self._held_as()) is not None:
            lock.act_as(held_as)
        return lock

    def _new_owner(self) -> str:
        return owner_of_work(self.task_id, 1 + secrets.randbits(40))

    def _held_as(self) -> str | None:
        holder = self.backend.holder(self.key)
        return holder.owner if holder is not None and is_owner_of(self.client_id, holder.owner) else None

    def keep(self, lease: Lease) -> None:
        """Leave the lock to a retry, for the whole time in the queue."""
        lease.extend(self.seconds)
        lease.leave_to_expire()

    def give_up(self) -> None:
        """Release the lock, whichever of this task's processes has it."""
        if (held_as := self._held_as()) is not None:
            self.backend.release(self.key, held_as)


def _end(step: Callable[[], object]) -> None:
    """Release after the task has ended; a failure masks neither its result nor its error."""
    try:
        step()
    except LockError as error:
        logger.warning("a unique task could not release its lock: %s", error)


@task_revoked.connect
def _give_up_revoked(sender: Any, request: Any, **_: Any) -> None:
    """Release the place of a task that was revoked or has expired: it never runs."""
    if isinstance(sender, UniqueTask):
        place = sender._place(request.id, request.args, request.kwargs)
        _end(place.give_up)

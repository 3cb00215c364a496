"""What `locking` keeps in the database: the highest token of each name, the audit, locks that live there."""

from __future__ import annotations

from typing import Any, ClassVar, Never, Self

from django.core.exceptions import ValidationError
from django.db import models, router
from django.db.models import Q
from django.db.transaction import atomic
from django.utils.translation import gettext_lazy as _

from locking.core.lease import Lease, SingleLease
from locking.exceptions import StaleFencingToken
from locking.utils.databases import UtcNow, storable

__all__ = ["FencedModel"]


class Fence(models.Model):
    """The highest token seen for a name, and the owner that brought it. Rows are never deleted.

    `locking.transactions.fence` writes it as the first statement of a fenced transaction: a holder that comes
    with an older token has lost the lock without knowing, and is refused.
    """

    name = models.CharField(_("name"), max_length=255, primary_key=True)
    token = models.BigIntegerField(_("fencing token"))
    owner = models.CharField(_("owner"), max_length=80)
    mark = models.CharField(
        _("mark"), max_length=32, help_text=_("Of the last transaction: tells whether it was committed.")
    )
    updated_at = models.DateTimeField(_("last used"), auto_now=True)

    class Meta:
        verbose_name = _("fence")
        verbose_name_plural = _("fences")
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return f"{self.name}: {self.token}"


class ImmutableRow(ValidationError):
    """An audit is added to, never changed."""


def _refuse(verb: str) -> Never:
    raise ImmutableRow(
        f"a lock event can't be {verb}: it belongs to the audit; manage.py prune_lock_events deletes old ones"
    )


class LockEventQuerySet(models.QuerySet["LockEvent"]):
    """Reads and adds; everything else is refused, on PostgreSQL by the database as well."""

    def update(self, **kwargs: Any) -> int:
        _refuse("changed")

    def delete(self) -> tuple[int, dict[str, int]]:
        _refuse("deleted")


class LockEvent(models.Model):
    """The audit: what was done to others' locks, and deadlocks. Never changed; pruned by age."""

    class Action(models.TextChoices):
        """What was asked for."""

        FORCE_RELEASE = "force_release", _("force release")
        EXTEND = "extend", _("extend")
        DEAD_PROCESS = "dead_process", _("release for a dead process")
        DEADLOCK = "deadlock", _("deadlock")

    at = models.DateTimeField(_("time"), db_default=UtcNow(), editable=False, db_index=True)
    action = models.CharField(_("action"), max_length=20, choices=Action.choices)
    done = models.BooleanField(
        _("done"), default=True, help_text=_("No: the hold had ended, so there was nothing to do.")
    )
    actor = models.CharField(_("actor"), max_length=200)
    reason = models.TextField(_("reason"), blank=True)
    backend = models.CharField(_("backend"), max_length=100)
    name = models.CharField(_("name"), max_length=1024)
    key = models.CharField(_("key"), max_length=1200)
    kind = models.CharField(_("kind"), max_length=20)
    owner = models.CharField(_("owner"), max_length=200)
    holder = models.CharField(_("holder"), max_length=400, help_text=_("Who it was, where that was known."))
    token = models.BigIntegerField(_("fencing token"), default=0)
    details = models.TextField(_("details"), blank=True)

    objects = LockEventQuerySet.as_manager()

    class Meta:
        verbose_name = _("lock event")
        verbose_name_plural = _("lock events")
        ordering: ClassVar = ["-at", "-pk"]

    def __str__(self) -> str:
        return f"{self.get_action_display()}: {self.name}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            _refuse("changed")
        self.name, self.key = storable(self.name), storable(self.key)
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        """Refuse."""
        _refuse("deleted")

    @classmethod
    def of(cls, hold: Any, action: Action, reason: str, actor: str, details: str = "") -> LockEvent:
        """Return the row, not yet written, of something done to this hold."""
        same = {name: getattr(hold, name) for name in ("backend", "name", "key", "kind", "owner", "token")}
        holder = hold.holder[:400]
        return cls(action=action, actor=actor, reason=reason, holder=holder, details=details, **same)


class HeldLock(models.Model):
    """What is held at this moment, as the admin lists it: rows of `locking.inspection.held`, no table."""

    ident = models.CharField(primary_key=True, max_length=4000, editable=False)

    class Meta:
        managed = False
        verbose_name = _("held lock")
        verbose_name_plural = _("held locks")
        default_permissions = ("view",)
        permissions: ClassVar = [
            ("release_heldlock", _("Can break a held lock by force")),
            ("extend_heldlock", _("Can extend a held lock")),
        ]

    hold: Any

    def __str__(self) -> str:
        return storable(self.hold.name) if hasattr(self, "hold") else self.ident


class LockRow(models.Model):
    """A lock of `locking.backends.database`, held or free; its statements are in `backends/database/sql.py`.

    Times are microseconds since 1970 by the database's clock: whole numbers mean the same to every engine.
    """

    id = models.CharField(
        primary_key=True,
        max_length=255,
        help_text=_("The key, or its hash where the database wouldn't keep it."),
    )
    name = models.TextField(_("key"))
    owner = models.CharField(_("owner"), max_length=80, blank=True)
    token = models.BigIntegerField(_("fencing token"))
    expires = models.BigIntegerField(_("end of the lease"), help_text=_("0: released."))
    since = models.BigIntegerField(_("held since"))
    wanted = models.BigIntegerField(_("waited for until"))
    kept = models.BooleanField(_("kept forever"), help_text=_("A database checks its tokens."))

    class Meta:
        db_table = "locking_row"
        verbose_name = _("lock in the database")
        verbose_name_plural = _("locks in the database")

    def __str__(self) -> str:
        return self.name


class ProcessRow(models.Model):
    """A process that holds locks of `locking.backends.database`, and the heartbeat that it publishes."""

    id = models.CharField(primary_key=True, max_length=255)
    text = models.TextField(_("what it tells"), help_text=_("JSON."))
    seen = models.BigIntegerField(
        _("last sign of life"), help_text=_("Microseconds since 1970, by the database's clock.")
    )

    class Meta:
        db_table = "locking_process"
        verbose_name = _("process that holds locks")
        verbose_name_plural = _("processes that hold locks")

    def __str__(self) -> str:
        return self.id


class FencedModel(models.Model):
    """A row that carries its own fence: for one protected row, where the shared table isn't wanted.

    Read it with `fenced_get` and write it with `fenced_update`, under one lease: an update that was decided
    on an older read is refused.

    Example:
        >>> class Account(FencedModel):  # doctest: +SKIP
        ...     balance = models.IntegerField()
        >>> with get_lock("account:7", fenced=True) as lease:  # doctest: +SKIP
        ...     account = Account.fenced_get(lease, pk=7)
        ...     account.fenced_update(lease, balance=account.balance - 5)
    """

    fence_token = models.BigIntegerField(_("fencing token"), default=0, editable=False)
    fence_owner = models.CharField(_("owner"), max_length=80, default="", blank=True, editable=False)

    class Meta:
        abstract = True

    @classmethod
    def fenced_get(cls, lease: Lease, *, using: str | None = None, **lookup: Any) -> Self:
        """Put the lease's token into a row, and read it after that: no older holder can change it then.

        Args:
            lease: of one name, the lock that protects this row; acquired with `fenced=True`.
            using: database alias; None = the router's choice.
            lookup: finds one row, as for `get`.

        Raises:
            StaleFencingToken: a newer holder has been here. LockLost: the lease has ended.
            DoesNotExist, MultipleObjectsReturned: as `get`. BackendUnavailable: the server doesn't answer.
            ValueError: a lease of several names, or one without a token.
        """
        single = _single(lease)
        lease.ensure_held()
        rows = cls._base_manager.using(using or router.db_for_write(cls))
        found = rows.get(**lookup)
        if not found._stamp(single):
            raise _overtaken(single, rows.get(pk=found.pk))
        read: Self = rows.filter(pk=found.pk).get(**lookup)
        if read.fence_owner != single.owner:
            raise _overtaken(single, read)
        return read

    def fenced_update(self, lease: Lease, **changes: Any) -> None:
        """Write `changes`, as only the holder who read this instance can.

        That is one UPDATE; of a row in several tables (multi-table inheritance) a transaction that locks the
        row with the token first.

        Args:
            lease: under which `fenced_get` has read this instance.
            changes: fields and their values or expressions; the instance has them afterwards.

        Raises:
            StaleFencingToken: a newer holder has been here. LockLost: the lease has ended.
            DoesNotExist: the row is gone. ValueError: the instance was read without `fenced_get`, or under
                another lease; or a lease of several names, or one without a token.
        """
        single = _single(lease)
        lease.ensure_held()
        if self.fence_owner != single.owner:
            if self.fence_token >= single.token:
                raise _overtaken(single, self)
            raise ValueError(
                f"{self!r} was not read by fenced_get under this lease of {lease.name!r}, so another holder"
                f" may have changed it since: read it with {type(self).__name__}.fenced_get(lease,"
                f" pk={self.pk!r})"
            )
        rows = type(self)._base_manager.using(self._state.db).filter(pk=self.pk)
        if not self._write(single, changes):
            seen = rows.first()
            if seen is None:
                raise self.DoesNotExist(f"{self!r} is no longer in the database")
            raise _overtaken(single, seen)
        # By name: a router may read from a replica, which lacks the update, and the instance would be its.
        self.refresh_from_db(using=self._state.db, fields=[*changes, "fence_token", "fence_owner"])

    def _stamp(self, lease: SingleLease) -> bool:
        """Put the lease's token into the row, unless a newer holder has been there; always a write."""
        fresh = Q(fence_token__lt=lease.token) | Q(fence_token=lease.token, fence_owner=lease.owner)
        return bool(self._fence().filter(fresh).update(fence_token=lease.token, fence_owner=lease.owner))

    def _write(self, lease: SingleLease, changes: dict[str, Any]) -> bool:
        """Write `changes` if the row has the token of the read; False where it has another by now."""
        # A row of several tables is written by Django in several statements, of which only the first looks at
        # the token. A lock on the row that has it keeps the next holder out until all are through.
        ours = Q(fence_token=self.fence_token, fence_owner=lease.owner)
        rows = type(self)._base_manager.using(self._state.db).filter(pk=self.pk).filter(ours)
        if not self._lies_in_several_tables():
            return bool(rows.update(**changes))
        with atomic(self._state.db):
            is_ours = self._fence().filter(ours).update(fence_owner=lease.owner)
            return bool(is_ours and rows.update(**changes))

    def _lies_in_several_tables(self) -> bool:
        concrete = self._meta.concrete_model
        return concrete is not None and bool(concrete._meta.parents)

    def _fence(self) -> models.QuerySet[Any]:
        """Return the row of the one table that has the token: an UPDATE of it checks and writes in one."""
        table: type[models.Model] = self._meta.get_field("fence_token").model
        return table._base_manager.using(self._state.db).filter(pk=self._get_pk_val(table._meta))


def _overtaken(lease: SingleLease, row: FencedModel) -> StaleFencingToken:
    return StaleFencingToken(
        f"the lock {lease.name!r} has token {lease.token}, but {row!r} was written with {row.fence_token} by"
        " a later holder: this holder was overtaken, and its writes are refused"
    )


def _single(lease: Lease) -> SingleLease:
    if len(lease.leases) != 1:
        raise ValueError(
            f"a fenced row takes the lease of one name, not of {lease.name}: pass the one of lease.leases"
            " that protects the row"
        )
    if not lease.leases[0].token:
        raise ValueError(f"the lease of {lease.name!r} has no fencing token: acquire it with fenced=True")
    return lease.leases[0]

"""Read-only pages: the audit and the fences."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from locking.admin.lookups import ListedLookups
from locking.inspection.columns import shortened, visible
from locking.models import Fence, LockEvent


class ReadOnly:
    """Read-only admin: the lock code writes the rows; a fence is never forgotten, the audit goes by age."""

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: what may be done to a held lock has permissions of its own."""
        return False

    has_add_permission = has_delete_permission = has_change_permission


class Kept(ListedLookups, ReadOnly):
    """Rows of the database, by name."""

    list_per_page = 50

    class Media:  # links differ from text by more than their color
        css: ClassVar = {"all": ["locking/held.css"]}

    @admin.display(description=_("name"), ordering="name")
    def short_name(self, row: Fence | LockEvent) -> str:
        """Return the lock's name as the list of held locks shows it."""
        return format_html('<bdi title="{}">{}</bdi>', visible(row.name), shortened(row.name))


@admin.register(LockEvent)
class LockEventAdmin(Kept, admin.ModelAdmin):  # type: ignore[type-arg]  # not subscriptable
    """What operators did to others' locks."""

    list_display = ("moment", "action", "done", "short_name", "holder", "actor", "reason")
    readonly_fields = ("moment",)
    # Not by a date hierarchy: on MySQL that needs the tables of time zones.
    list_filter = ("at", "action", "done", "backend", "kind")
    search_fields = ("name", "owner", "actor", "reason")
    search_help_text = _("Name, owner, actor or reason")

    @admin.display(description=_("time"), ordering="at")
    def moment(self, row: LockEvent) -> str:
        """Return the time to the second, with its zone: logs are compared by it."""
        return timezone.localtime(row.at).strftime("%Y-%m-%d %H:%M:%S %Z")


@admin.register(Fence)
class FenceAdmin(Kept, admin.ModelAdmin):  # type: ignore[type-arg]  # not subscriptable
    """The highest token that each name has been used with."""

    list_display = ("short_name", "token", "owner", "updated_at")
    search_fields = ("=name", "owner")
    search_help_text = _("Name in full, or owner")
    show_full_result_count = False

"""Held locks: the list, the page of one hold, and the actions of an operator."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import connections
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_safe

from locking.admin.audit import ReadOnly
from locking.admin.held_rows import (
    FILTERS,
    MOST_AT_ONCE,
    HeldChangeList,
    Rows,
    as_row,
    find_row,
    page_of,
)
from locking.core.handler import locks
from locking.exceptions import BackendError, LockNotSupported
from locking.inspection.admin_actions import Result, extend_held, force_release
from locking.inspection.facts import facts
from locking.inspection.formatting import shortened, visible
from locking.inspection.held import known_waiters
from locking.inspection.stats import last_hour
from locking.inspection.waiting import wait_trees
from locking.keys.names import MAX_TTL
from locking.models import HeldLock, LockEvent
from locking.utils.databases import storable

MOST_AS_JSON = 1000
EVENTS_SHOWN = 10


def _committed_by_steps(view: Any) -> Any:
    """Keep ATOMIC_REQUESTS from a view that breaks locks: a rollback would undo fence and audit, and not
    the release.
    """
    view._non_atomic_requests = set(connections)
    return view


class ReasonForm(forms.Form):
    """Why a lock is broken."""

    reason = forms.CharField(
        label=_("Reason"),
        max_length=500,
        widget=forms.Textarea(attrs={"rows": 3, "cols": 60, "autofocus": True}),
        help_text=_("Kept in the audit."),
    )


class ExtendForm(forms.Form):
    """How long to keep others out."""

    ttl = forms.FloatField(
        label=_("Seconds from now"), min_value=1, max_value=MAX_TTL, initial=300, widget=forms.NumberInput
    )
    reason = forms.CharField(label=_("Reason"), max_length=500, required=False)


@admin.register(HeldLock)
class HeldLockAdmin(ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]  # not subscriptable
    """What is held now. Subclass it to name the databases whose fences a force release advances."""

    fence_databases: ClassVar[tuple[str, ...]] = ("default",)

    list_display = ("__str__",)  # the rows are drawn by the change list
    list_filter = FILTERS
    search_fields = ("name",)
    search_help_text = _("Part of a name, owner, host, path, task or place in the code")
    list_per_page = 50
    show_facets = admin.ShowFacets.NEVER
    actions = ("release_selected",)

    # who may do what

    def has_release_permission(self, request: HttpRequest) -> bool:
        """Whether the user may break a lock by force."""
        return self._may(request, "release_heldlock")

    def has_extend_permission(self, request: HttpRequest) -> bool:
        """Whether the user may extend a lock."""
        return self._may(request, "extend_heldlock")

    def _may(self, request: HttpRequest, permission: str) -> bool:
        return self.has_view_permission(request) and request.user.has_perm(f"locking.{permission}")

    # the list

    def get_queryset(self, request: HttpRequest) -> Any:
        return Rows()  # the change list asks for them itself

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[HeldChangeList]:
        return HeldChangeList

    @_committed_by_steps
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the list, below the figures of the last hour."""
        extra = {"title": gettext("Held locks"), **_last_hour(request), **(extra_context or {})}
        return super().changelist_view(request, extra)

    # other addresses

    def get_urls(self) -> list[Any]:
        """Add JSON and the two interventions to the admin's own addresses."""
        wrap = self.admin_site.admin_view
        own = [
            path("waiting/", wrap(require_safe(self.waiting_view)), name="locking_heldlock_waiting"),
            path("json/", wrap(require_safe(self.json_view)), name="locking_heldlock_json"),
            path("<path:object_id>/release/", wrap(self.release_view), name="locking_heldlock_release"),
            path("<path:object_id>/extend/", wrap(self.extend_view), name="locking_heldlock_extend"),
        ]
        return [*own, *super().get_urls()]

    def json_view(self, request: HttpRequest) -> HttpResponse:
        """Return the list as JSON; the same parameters as the list, and `offset` and `limit`."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            offset, limit = int(request.GET.get("offset", 0)), int(request.GET.get("limit", 50))
            search = request.GET.get("q", "")
            page = page_of(request.GET, search=search, offset=offset, limit=min(limit, MOST_AS_JSON))
        except ValueError as error:
            return JsonResponse({"error": str(error)}, status=400)
        return JsonResponse(page.as_dict())

    def waiting_view(self, request: HttpRequest) -> HttpResponse:
        """Show who waits for whom, across processes."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        found, problems = known_waiters(request.GET.get("without", ""))
        return self._render(
            request,
            "waiting",
            title=gettext("Who waits for whom"),
            trees=[(node, [as_row(hold) for hold in node.holds]) for node in wait_trees(found)],
            problems=problems,
            may_release=self.has_release_permission(request),
        )

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> HeldLock | None:
        try:
            return find_row(object_id)
        except (BackendError, LockNotSupported) as error:
            self.message_user(request, str(error), messages.ERROR)
            return None

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show one hold."""
        if not self.has_view_permission(request) or request.method not in ("GET", "HEAD"):
            raise PermissionDenied
        row = self.get_object(request, unquote(object_id))
        if row is None:
            return self._ended(request)
        return self._page(request, "detail", row, facts=facts(row.hold), timeline=_timeline(row.hold))

    @_committed_by_steps
    def release_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask for a reason, then break the lock of the owner that the page showed."""
        if not self.has_release_permission(request):
            raise PermissionDenied
        done = _("Broken: %(name)s. The old holder was not stopped; fenced writes of it are refused.")
        return self._intervene(request, object_id, "release", ReasonForm, self._force, done)

    @_committed_by_steps
    def extend_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask for a length, then extend the lease of the owner that the page showed."""
        if not self.has_extend_permission(request):
            raise PermissionDenied
        return self._intervene(
            request, object_id, "extend", ExtendForm, self._extend, _("Extended: %(name)s.")
        )

    def _intervene(
        self,
        request: HttpRequest,
        object_id: str,
        template: str,
        form_class: type[forms.Form],
        step: Callable[..., Result],
        done: Any,
    ) -> HttpResponse:
        row = self.get_object(request, unquote(object_id))
        if row is None:
            return self._ended(request)
        form = form_class(request.POST if request.method == "POST" else None)
        if request.method != "POST" or not form.is_valid():
            return self._page(request, template, row, form=form)
        try:
            result = step(request, row, **form.cleaned_data)
        except (ValueError, BackendError, LockNotSupported) as error:
            form.add_error(None, str(error))
            return self._page(request, template, row, form=form)
        if not result.done:
            return self._ended(request)
        self.message_user(request, done % {"name": visible(str(row))}, messages.SUCCESS)
        return self._back_to_list()

    def _page(self, request: HttpRequest, template: str, row: Any, **context: Any) -> HttpResponse:
        of_hold = {
            "row": row,
            "hold": row.hold,
            "title": shortened(str(row)),
            "may_release": self.has_release_permission(request),
            "may_extend": self.has_extend_permission(request),
        }
        return self._render(request, template, **{**of_hold, **context})

    def _render(self, request: HttpRequest, template: str, **context: Any) -> HttpResponse:
        request.current_app = self.admin_site.name
        everywhere = {**self.admin_site.each_context(request), "opts": self.opts}
        return TemplateResponse(request, f"admin/locking/heldlock/{template}.html", {**everywhere, **context})

    def _ended(self, request: HttpRequest) -> HttpResponse:
        text = gettext(
            "That hold has ended; nothing was done. If the lock is listed, somebody else has it now."
        )
        self.message_user(request, text, messages.WARNING)
        return self._back_to_list()

    def _back_to_list(self) -> HttpResponse:
        return HttpResponseRedirect(
            reverse("admin:locking_heldlock_changelist", current_app=self.admin_site.name)
        )

    # breaking several

    @admin.action(permissions=["release"], description=_("Force release selected locks…"))
    def release_selected(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        """Ask for one reason, then break each of the ticked holds that is still there."""
        if not 0 < len(queryset) <= MOST_AT_ONCE:
            text = gettext("Tick up to %(most)d locks; all at once can't be broken.") % {"most": MOST_AT_ONCE}
            self.message_user(request, text, messages.ERROR)
            return None
        form = ReasonForm(request.POST if "reason" in request.POST else None)
        try:
            rows = list(queryset)
            if form.is_valid():
                return self._release_all(request, rows, len(queryset), form.cleaned_data["reason"])
        except (BackendError, LockNotSupported) as error:
            self.message_user(request, str(error), messages.ERROR)
            return None
        if not rows:
            return self._ended(request)
        return self._page(
            request, "release_selected", rows[0], rows=rows, form=form, title=gettext("Force release")
        )

    def _release_all(self, request: HttpRequest, rows: list[Any], ticked: int, reason: str) -> HttpResponse:
        broken = sum(self._force(request, row, reason).done for row in rows)
        text = gettext(
            "Broken: %(broken)d; ended by themselves: %(ended)d. The old holders were not stopped."
        )
        self.message_user(request, text % {"broken": broken, "ended": ticked - broken}, messages.SUCCESS)
        return self._back_to_list()

    def _force(self, request: HttpRequest, row: Any, reason: str) -> Result:
        actor = request.user.get_username()
        result = force_release(row.hold, reason=reason, actor=actor, databases=self.fence_databases)
        self._log(request, row, result, f"Force released: {reason}")
        return result

    def _extend(self, request: HttpRequest, row: Any, ttl: float, reason: str) -> Result:
        result = extend_held(row.hold, ttl, reason=reason, actor=request.user.get_username())
        self._log(request, row, result, f"Extended to {ttl:g} s.")
        return result

    def _log(self, request: HttpRequest, row: Any, result: Result, message: str) -> None:
        if result.done:
            LogEntry.objects.log_actions(
                user_id=request.user.pk or 0,
                queryset=[row],
                action_flag=CHANGE,
                change_message=message,
                single_object=True,
            )


def _last_hour(request: HttpRequest) -> dict[str, Any]:
    """Return the last hour of the chosen backend, the default one else; nothing when it can't tell."""
    try:
        minutes = last_hour(locks[request.GET.get("backend") or "default"])
    except (BackendError, KeyError, ValueError, locks.exception_class):
        return {}
    if not minutes:
        return {}
    sums = {what: sum(each.get(what, 0) for each in minutes) for what in COUNTED}
    acquired = [each.get("acquired", 0) for each in minutes]
    return {
        "figures": [(label, sums[what], sums[what] and what in ALARMING) for what, label in COUNTED.items()],
        "history": _history(acquired) if any(acquired) else None,
    }


COUNTED = {
    "acquired": _("acquired"),
    "refused": _("refused"),
    "deadlock": _("deadlocks"),
    "lost": _("lost"),
}
ALARMING = ("deadlock", "lost")


def _history(minutes: list[int]) -> dict[str, Any]:
    """Return acquisitions, minute by minute, as a line in a box of 60 × 20."""
    most = max(minutes)
    points = " ".join(f"{number},{20 - 19 * count / most:.1f}" for number, count in enumerate(minutes))
    text = gettext("Acquisitions per minute in the last hour; at most %(most)d.") % {"most": most}
    return {"points": points, "most": most, "text": text}


def _timeline(hold: Any) -> list[tuple[datetime, Any, str, str]]:
    """Return when what happened to a lock, by whom and why, the latest first."""
    here, zone = time.time(), timezone.get_current_timezone()  # noqa: TID251 shown
    seen = [
        (hold.started, _("process began"), hold.program, None),
        (hold.since, _("acquired"), hold.holder, hold.site),
        *((here - each.waited, _("waits"), each.who, each.doing) for each in hold.waiting),
    ]
    moments: list[tuple[datetime, Any, str, str]] = [
        (datetime.fromtimestamp(at, zone), what, visible(by or ""), visible(why or ""))
        for at, what, by, why in seen
        if at is not None
    ]
    for event in LockEvent.objects.filter(backend=hold.backend, name=storable(hold.name))[:EVENTS_SHOWN]:
        ended = "" if event.done else f" ({_('had ended')})"
        moments.append((event.at, f"{event.get_action_display()}{ended}", event.actor, event.reason))
    return sorted(moments, key=lambda moment: moment[0], reverse=True)

"""Held locks: the list, which the backends fill, the page of one hold, and the actions of an operator."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from datetime import datetime
from functools import partial
from itertools import takewhile
from operator import attrgetter
from typing import Any, ClassVar, Final

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import quote, unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.core.signing import BadSignature, Signer
from django.db import connections
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_safe

from locking.admin.audit import ReadOnly
from locking.core.handler import InvalidLockBackend, locks
from locking.core.kinds import LABELS
from locking.exceptions import BackendError, LockError, LockNotSupported
from locking.inspection.admin_actions import Result, extend_held, force_release
from locking.inspection.columns import COLUMNS, STATES, Column, facts, shortened, visible
from locking.inspection.columns import HeldLock as Hold
from locking.inspection.heartbeat import last_hour
from locking.inspection.held import Filter, Page, find_hold, held_locks, known_waiters, wait_trees
from locking.keys.names import MAX_TTL
from locking.models import HeldLock, LockEvent
from locking.utils.databases import storable

MOST_AS_JSON = 1000
EVENTS_SHOWN = 10
MOST_AT_ONCE = 100  # rows that one bulk action takes

signer: Final = partial(Signer, salt="locking.heldlock")  # an address names nothing but what a page has shown


def as_row(hold: Hold) -> HeldLock:
    """Return a hold as an instance of its model; its key has the owner, so that it means no newer hold."""
    row = HeldLock(ident=signer().sign_object([hold.backend, hold.key, hold.owner, hold.kind]))
    row.hold = hold
    return row


def find_row(ident: str) -> HeldLock | None:
    """Return the hold that an address means, if it still is one; errors as for `find_hold`."""
    try:
        hold = find_hold(*signer().unsign_object(ident))
    except (BadSignature, InvalidLockBackend):
        return None
    return None if hold is None else as_row(hold)


def _cell(column: Column, small: Sequence[Column]) -> Callable[[HeldLock], str]:
    """Return a column of `list_display`, with those in small print below it."""

    @admin.display(description=column.label)
    def cell(row: HeldLock) -> str:
        below = [text for each in small if (text := each.text(row.hold))]
        shown = {"row": row, "hold": row.hold, "column": column.name, "text": column.text(row.hold)}
        return render_to_string("admin/locking/heldlock/cell.html", {**shown, "below": below})

    cell.__name__ = column.name  # Django makes a class of it, by which a style or a test finds the cell
    return cell


CELLS: Final = [
    _cell(column, [*takewhile(attrgetter("small"), COLUMNS[place + 1 :])])
    for place, column in enumerate(COLUMNS)
    if column.heading and not column.small
]


class HeldFilter(admin.SimpleListFilter):
    """A filter by which `HeldChangeList` asks the backends; it changes no queryset."""

    template = "admin/locking/heldlock/filter.html"

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset


class Order(HeldFilter):
    """What comes first; the contended without a choice, then the oldest."""

    def choices(self, changelist: Any) -> Iterator[Any]:
        default, *others = super().choices(changelist)
        yield {**default, "display": _("the contended first")}
        yield from others


class Text(HeldFilter):
    """A filter with a text field."""

    template = "admin/locking/heldlock/text_filter.html"

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Yield what the template needs: the text so far, and what else the address says."""
        others = {name: value for name, value in changelist.params.items() if name != self.parameter_name}
        yield {"value": self.value() or "", "name": self.parameter_name, "others": others}


def _filter(
    kind: type[HeldFilter], name: str, title: Any, options: Callable[[], Iterable[tuple[str, Any]]]
) -> type[HeldFilter]:
    of_class = {"parameter_name": name, "title": title, "lookups": lambda *_: list(options())}
    return type(f"{name.capitalize()}Filter", (kind,), of_class)


def _aliases() -> list[tuple[str, Any]]:
    aliases = list(locks)
    return [(alias, alias) for alias in aliases] if len(aliases) > 1 else []  # one alias is no choice


ORDERS = {"age": _("the oldest first"), "waiters": _("most waiters first")}
AGES = {"10": _("10 seconds"), "60": _("1 minute"), "600": _("10 minutes"), "3600": _("1 hour")}
ONE = {"": ""}  # a filter without any choice isn't shown

FILTERS: Final = (
    _filter(Order, "order", pgettext_lazy("sorting", "order"), ORDERS.items),
    _filter(HeldFilter, "state", _("state"), STATES.items),
    _filter(HeldFilter, "older_than", _("held longer than"), AGES.items),
    _filter(HeldFilter, "kind", _("kind"), LABELS.items),
    _filter(HeldFilter, "backend", _("backend"), _aliases),
    _filter(Text, "prefix", _("beginning of the name"), ONE.items),
    _filter(Text, "without", _("not beginning with"), ONE.items),
    _filter(Text, "host", _("host"), ONE.items),
)


def page_of(params: Any, *, offset: int, limit: int, order: str = "age") -> Page:
    """Return the page that these parameters of an address ask for; ValueError: one of them can't be."""
    given = {each.name: params[each.name] for each in fields(Filter) if params.get(each.name)}
    given |= {"search": params.get("q", ""), "older_than": float(params.get("older_than") or 0)}
    alias, order = params.get("backend") or None, params.get("order") or order
    try:
        return held_locks(alias, **given, offset=offset, limit=limit, order=order)
    except (InvalidLockBackend, LockError) as error:
        raise ValueError(str(error)) from error


MOST_PAGES: Final = 1_000_000  # the greatest page number that an address may ask for


class HeldChangeList(ChangeList):
    """The change list without a table behind it."""

    page: Page
    filter_names: ClassVar = [str(each.parameter_name) for each in FILTERS]

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Any:
        """Read the filters, and ask no database."""
        self.filter_specs, self.has_filters, unknown, _, self.has_active_filters = self.get_filters(request)
        if unknown:
            raise IncorrectLookupParameters
        self.clear_all_filters_qs = self.get_query_string(remove=self.filter_names)
        return self.root_queryset

    def get_results(self, request: HttpRequest) -> None:
        """Ask the backends for this page."""
        try:
            self.page = page = self._asked(self.page_num if 0 < self.page_num < MOST_PAGES else 1)
            if not page.rows and self.page_num > 1:  # its locks have ended: Django's template fails on it
                self.page = page = self._asked(1)
        except ValueError as error:
            raise IncorrectLookupParameters(str(error)) from error
        self.result_list = [as_row(hold) for hold in page.rows]
        self.result_count = self.full_result_count = page.total
        self.show_full_result_count = self.can_show_all = False
        self.show_admin_actions = True
        self.multi_page = page.total > self.list_per_page
        self.paginator = Paginator(range(page.total), self.list_per_page)

    def _asked(self, number: int) -> Page:
        limit = self.list_per_page
        self.page_num, offset = number, (number - 1) * limit
        return page_of(self.params, offset=offset, limit=limit, order="contention")

    @property
    def is_narrowed(self) -> bool:
        """Whether it shows less than everything; if so, an empty list doesn't mean that nothing is held."""
        return bool(self.query or any(self.params.get(name) for name in self.filter_names if name != "order"))


def _committed_by_steps(view: Any) -> Any:
    """Keep ATOMIC_REQUESTS from a view that breaks locks: a rollback would undo all but the release."""
    view._non_atomic_requests = set(connections)
    return view


class ReleaseForm(forms.Form):
    """Why a lock is broken."""

    reason = forms.CharField(
        label=_("Reason"),
        max_length=500,
        widget=forms.Textarea(attrs={"rows": 3, "cols": 60, "autofocus": True}),
        help_text=_("Kept in the audit."),
    )
    verb = "release"
    log = "Force released: {reason}"
    done = _("Broken: %(name)s. The old holder was not stopped; fenced writes of it are refused.")

    def carry_out(self, hold: Hold, actor: str, databases: Sequence[str]) -> Result:
        """Break the hold."""
        return force_release(hold, **self.cleaned_data, actor=actor, databases=databases)


class ExtendForm(forms.Form):
    """How long to keep others out."""

    ttl = forms.FloatField(
        label=_("Seconds from now"), min_value=1, max_value=MAX_TTL, initial=300, widget=forms.NumberInput
    )
    reason = forms.CharField(label=_("Reason"), max_length=500, required=False)
    verb = "extend"
    log = "Extended to {ttl:g} s."
    done = _("Extended: %(name)s.")

    def carry_out(self, hold: Hold, actor: str, databases: Sequence[str]) -> Result:
        """Extend the lease."""
        return extend_held(hold, **self.cleaned_data, actor=actor)


@admin.register(HeldLock)
class HeldLockAdmin(ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]  # not subscriptable
    """What is held now. Subclass it to name the databases whose fences a force release advances."""

    fence_databases: ClassVar[tuple[str, ...]] = ("default",)

    list_display_links = None
    list_filter = FILTERS
    search_fields = ("name",)
    search_help_text = _("Part of a name, owner, host, path, task or place in the code")
    list_per_page = 50
    show_facets = admin.ShowFacets.NEVER
    actions = ("release_selected",)

    def has_release_permission(self, request: HttpRequest) -> bool:
        """Whether the user may break a lock by force."""
        return self.has_view_permission(request) and request.user.has_perm("locking.release_heldlock")

    def has_extend_permission(self, request: HttpRequest) -> bool:
        """Whether the user may extend a lock."""
        return self.has_view_permission(request) and request.user.has_perm("locking.extend_heldlock")

    def get_queryset(self, request: HttpRequest) -> Any:
        return HeldLock.objects.none()  # the change list asks the backends

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Return the columns, the last with a link for those who may break locks."""
        return [*CELLS, *(["release"] if self.has_release_permission(request) else [])]

    @admin.display(description=_("Action"))
    def release(self, row: HeldLock) -> str:
        """Return the link that breaks one lock."""
        link = '<a class="held-release" href="{}/release/">{}</a>'
        return format_html(link, quote(row.pk), gettext("Force release…"))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[HeldChangeList]:
        return HeldChangeList

    @_committed_by_steps
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the list, below the figures of the last hour."""
        extra = {"title": gettext("Held locks"), **_last_hour(request), **(extra_context or {})}
        return super().changelist_view(request, extra)

    def get_urls(self) -> list[Any]:
        """Add JSON, the waiters and the two interventions to the admin's own addresses."""
        wrap = self.admin_site.admin_view
        own = [
            path("waiting/", wrap(require_safe(self.waiting_view)), name="locking_heldlock_waiting"),
            path("json/", wrap(require_safe(self.json_view)), name="locking_heldlock_json"),
        ]
        for form in (ReleaseForm, ExtendForm):
            address, view = f"<path:object_id>/{form.verb}/", wrap(self.intervene_view)
            own.append(path(address, view, {"form_class": form}, f"locking_heldlock_{form.verb}"))
        return [*own, *super().get_urls()]

    def json_view(self, request: HttpRequest) -> HttpResponse:
        """Return the list as JSON; the same parameters as the list, and `offset` and `limit`."""
        _require(self.has_view_permission(request))
        try:
            offset, limit = int(request.GET.get("offset", 0)), int(request.GET.get("limit", 50))
            page = page_of(request.GET, offset=offset, limit=min(limit, MOST_AS_JSON))
        except ValueError as error:
            return JsonResponse({"error": str(error)}, status=400)
        return JsonResponse(page.as_dict())

    def waiting_view(self, request: HttpRequest) -> HttpResponse:
        """Show who waits for whom, across processes."""
        _require(self.has_view_permission(request))
        found, problems = known_waiters(request.GET.get("without", ""))
        trees = [(node, [as_row(hold) for hold in node.holds]) for node in wait_trees(found)]
        return self._render(request, "waiting", gettext("Who waits for whom"), trees=trees, problems=problems)

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
        _require(self.has_view_permission(request) and request.method in ("GET", "HEAD"))
        row = self.get_object(request, unquote(object_id))
        if row is None:
            return self._ended(request)
        known = {"facts": facts(row.hold), "timeline": _timeline(row.hold)}
        return self._render(request, "detail", shortened(str(row)), row=row, hold=row.hold, **known)

    @_committed_by_steps
    def intervene_view(
        self, request: HttpRequest, object_id: str, form_class: type[ReleaseForm | ExtendForm]
    ) -> HttpResponse:
        """Fill in the form, then break or extend the hold of the owner that the page showed."""
        _require(getattr(self, f"has_{form_class.verb}_permission")(request))
        row = self.get_object(request, unquote(object_id))
        if row is None:
            return self._ended(request)
        form = form_class(request.POST if request.method == "POST" else None)
        if form.is_valid():
            try:
                if not self._carry_out(request, row, form):
                    return self._ended(request)
                self.message_user(request, form.done % {"name": visible(str(row))}, messages.SUCCESS)
                return self._back_to_list()
            except (ValueError, BackendError, LockNotSupported) as error:
                form.add_error(None, str(error))
        return self._render(request, form.verb, shortened(str(row)), row=row, hold=row.hold, form=form)

    def _carry_out(self, request: HttpRequest, row: HeldLock, form: ReleaseForm | ExtendForm) -> bool:
        """Do what the form says, and write it to the admin's history; False when the hold had ended."""
        result = form.carry_out(row.hold, request.user.get_username(), self.fence_databases)
        if result.done:
            self.log_change(request, row, form.log.format(**form.cleaned_data))
        return result.done

    @admin.action(permissions=["release"], description=_("Force release selected locks…"))
    def release_selected(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        """Ask for one reason, then break each of the ticked holds that is still there."""
        ticked = request.POST.getlist(ACTION_CHECKBOX_NAME)
        if not 0 < len(ticked) <= MOST_AT_ONCE:
            text = gettext("Tick up to %(most)d locks; all at once can't be broken.") % {"most": MOST_AT_ONCE}
            self.message_user(request, text, messages.ERROR)
            return None
        form = ReleaseForm(request.POST if "reason" in request.POST else None)
        try:
            rows = [row for row in map(find_row, ticked) if row is not None]
            if form.is_valid():
                broken = sum(self._carry_out(request, row, form) for row in rows)
                text = gettext(
                    "Broken: %(broken)d; ended by themselves: %(ended)d. The old holders were not stopped."
                )
                counted = {"broken": broken, "ended": len(ticked) - broken}
                self.message_user(request, text % counted, messages.SUCCESS)
                return self._back_to_list()
        except (BackendError, LockNotSupported) as error:
            self.message_user(request, str(error), messages.ERROR)
            return None
        if not rows:
            return self._ended(request)
        return self._render(request, "release_selected", gettext("Force release"), rows=rows, form=form)

    def _render(self, request: HttpRequest, template: str, title: str, **context: Any) -> HttpResponse:
        request.current_app = self.admin_site.name
        everywhere = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": title,
            "may_release": self.has_release_permission(request),
            "may_extend": self.has_extend_permission(request),
        }
        return TemplateResponse(request, f"admin/locking/heldlock/{template}.html", {**everywhere, **context})

    def _ended(self, request: HttpRequest) -> HttpResponse:
        text = gettext(
            "That hold has ended; nothing was done. If the lock is listed, another holder has it now."
        )
        self.message_user(request, text, messages.WARNING)
        return self._back_to_list()

    def _back_to_list(self) -> HttpResponse:
        return redirect(reverse("admin:locking_heldlock_changelist", current_app=self.admin_site.name))


def _require(allowed: bool) -> None:
    if not allowed:
        raise PermissionDenied


COUNTED = {"acquired": _("acquired"), "refused": _("refused"), "deadlock": _("deadlocks"), "lost": _("lost")}
ALARMING = ("deadlock", "lost")


def _last_hour(request: HttpRequest) -> dict[str, Any]:
    """Return figures of the last hour of a backend, and its acquisitions as a line in a box of 60 × 20."""
    try:
        minutes = last_hour(locks[request.GET.get("backend") or "default"])
    except (BackendError, KeyError, ValueError, locks.exception_class):
        return {}
    if not minutes:
        return {}
    sums = {what: sum(each.get(what, 0) for each in minutes) for what in COUNTED}
    figures = [(label, sums[what], sums[what] and what in ALARMING) for what, label in COUNTED.items()]
    acquired = [each.get("acquired", 0) for each in minutes]
    if not (most := max(acquired)):
        return {"figures": figures}
    points = " ".join(f"{number},{20 - 19 * count / most:.1f}" for number, count in enumerate(acquired))
    text = gettext("Acquisitions per minute in the last hour; at most %(most)d.") % {"most": most}
    return {"figures": figures, "history": {"points": points, "text": text}}


def _timeline(hold: Hold) -> list[tuple[datetime, Any, str, str]]:
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

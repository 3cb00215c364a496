"""From `locking.inspection` to what Django's change list shows: rows, columns, filters, pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from itertools import takewhile
from operator import attrgetter
from typing import Any, ClassVar, Final

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.core.signing import BadSignature, Signer
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from locking.core.handler import InvalidLockBackend, locks
from locking.core.kinds import LABELS
from locking.exceptions import LockError
from locking.inspection.columns import COLUMNS, STATES, Column
from locking.inspection.columns import HeldLock as Hold
from locking.inspection.held import Filter, Page, find_hold, held_locks
from locking.models import HeldLock

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
    options: ClassVar[Callable[[], Iterable[tuple[str, Any]]]]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return list(type(self).options())

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
    of_class = {"parameter_name": name, "title": title, "options": staticmethod(options)}
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

"""From `locking.inspection.held` to what Django's change list shows: rows, filters, pages."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from locking.core.handler import InvalidLockBackend, locks
from locking.core.kinds import LABELS as KIND_NAMES
from locking.exceptions import LockError
from locking.inspection.held import STATES as STATE_NAMES
from locking.inspection.held import HeldLock as HeldLockInfo
from locking.inspection.held import Page, find_hold, held_locks
from locking.models import HeldLock

MOST_AT_ONCE = 100
"""Rows that one bulk action takes."""


class Ident(NamedTuple):
    """What a page's address says of a hold: the owner as well, so that it never means a newer holder."""

    backend: str
    kind: str
    key: str
    owner: str

    def __str__(self) -> str:
        raw = json.dumps(self, ensure_ascii=False, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(raw).decode().rstrip("=")

    @classmethod
    def read(cls, text: str) -> Ident | None:
        """Return what `text` says; None when it isn't an ident."""
        try:
            parts = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            json.dumps(parts, ensure_ascii=False).encode()  # a lone surrogate is no text that a server knows
        except (binascii.Error, ValueError, RecursionError):
            return None
        if not isinstance(parts, list) or len(parts) != 4 or not all(isinstance(part, str) for part in parts):
            return None
        return cls(*parts) if parts[1] in KIND_NAMES else None


def as_row(hold: HeldLockInfo) -> HeldLock:
    """Return a hold as an instance of its model."""
    row = HeldLock(ident=str(Ident(hold.backend, hold.kind, hold.key, hold.owner)))
    row.hold = hold
    return row


def find_row(text: str) -> HeldLock | None:
    """Return the hold that an address means, if it still is one; errors as for `find_hold`."""
    ident = Ident.read(text)
    if ident is None:
        return None
    try:
        hold = find_hold(ident.backend, ident.key, ident.owner, ident.kind)
    except InvalidLockBackend:
        return None
    return None if hold is None else as_row(hold)


class Rows:
    """What the change list takes for a queryset: the rows that were ticked, or none yet."""

    model = HeldLock
    db = None

    def __init__(self, idents: Sequence[str] = ()) -> None:
        self.idents = list(idents)

    def filter(self, *, pk__in: Sequence[str]) -> Rows:
        """Return the rows with these idents."""
        return Rows(pk__in)

    def __len__(self) -> int:
        return len(self.idents)

    def __iter__(self) -> Iterator[HeldLock]:
        """Yield those that are still held."""
        return (row for row in map(find_row, self.idents) if row is not None)


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

FILTERS = (
    _filter(Order, "order", pgettext_lazy("sorting", "order"), ORDERS.items),
    _filter(HeldFilter, "state", _("state"), STATE_NAMES.items),
    _filter(HeldFilter, "older_than", _("held longer than"), AGES.items),
    _filter(HeldFilter, "kind", _("kind"), KIND_NAMES.items),
    _filter(HeldFilter, "backend", _("backend"), _aliases),
    _filter(Text, "prefix", _("beginning of the name"), ONE.items),
    _filter(Text, "without", _("not beginning with"), ONE.items),
    _filter(Text, "host", _("host"), ONE.items),
)


def page_of(params: Any, *, search: str, offset: int, limit: int, order: str = "age") -> Page:
    """Return the page that these parameters of an address ask for; `order` where they name none.

    Raises:
        ValueError: one of them can't be.
    """
    try:
        return held_locks(
            params.get("backend") or None,
            search=search,
            **{name: params.get(name, "") for name in ("prefix", "without", "state", "kind", "host")},
            older_than=float(params.get("older_than") or 0),
            offset=offset,
            limit=limit,
            order=params.get("order") or order,
        )
    except (InvalidLockBackend, LockError) as error:
        raise ValueError(str(error)) from error


MOST_PAGES: Final = 1_000_000
"""The greatest page number that an address may ask for."""


class HeldChangeList(ChangeList):
    """The change list without a table behind it."""

    page: Page
    tickable: bool
    filter_names: ClassVar = [str(each.parameter_name) for each in FILTERS]

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Any:
        """Read the filters; nothing is asked of a database."""
        specs, has_filters, unknown, _, active = self.get_filters(request)
        if unknown:
            raise IncorrectLookupParameters
        self.filter_specs, self.has_filters, self.has_active_filters = specs, has_filters, active
        self.clear_all_filters_qs = self.get_query_string(remove=self.filter_names)
        return Rows()

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
        admin_of_locks: Any = self.model_admin
        self.tickable = admin_of_locks.has_release_permission(request)

    def _asked(self, number: int) -> Page:
        self.page_num, offset = number, (number - 1) * self.list_per_page
        return page_of(
            self.params, search=self.query, offset=offset, limit=self.list_per_page, order="contention"
        )

    @property
    def is_narrowed(self) -> bool:
        """Whether it shows less than everything; if so, an empty list doesn't mean that nothing is held."""
        return bool(self.query or any(self.params.get(name) for name in self.filter_names if name != "order"))

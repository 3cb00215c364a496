"""What the admin pages share: pages to be read, states with shape and color, and asking before an action."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from uuid import uuid4

from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from inventory.admin import ShortPaginator

STYLES: Final = {"all": ("orders/states.css",)}

_SHAPES: Final = {"good": "●", "open": "○", "ended": "×", "warn": "▲"}


def badge(tone: str, text: Any) -> str:
    """Return `text` with the shape and the color of `tone`: good, open, ended or warn."""
    return format_html('<span class="state state-{}">{} {}</span>', tone, _SHAPES[tone], text)


class BigTable:
    """A list whose page costs the same however many rows there are."""

    paginator: Any = ShortPaginator
    show_full_result_count = False
    list_per_page = 50


class ReadOnly(BigTable):
    """Looking is all that anyone may do; what may be done more is an action."""

    opts: Any
    readonly_fields: ClassVar[Any]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return all fields: a form has none of those that say when it was and what failed."""
        return self.readonly_fields or [field.name for field in self.opts.concrete_fields]

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse: rows are created elsewhere."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Events can't be edited."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse: the ledger refers to the row."""
        return False


def reason(request: HttpRequest) -> str:
    """Return the reason that was given, one line of it."""
    return " ".join(request.POST.get("reason", "").split())[:200]


MOST_ROWS: Final = 100
"""Rows that one action takes: a page that asks about more can't be read before it is confirmed."""


@dataclass(frozen=True)
class Row:
    """One line of a page that asks before something is done.

    Attributes:
        cells: what is known. field: the name of the number to fill in, or None where there is none.
        value: what is in it at first. most: the largest number that can be. step: between two numbers.
    """

    cells: tuple[Any, ...]
    field: str | None = None
    value: object = ""
    most: object = None
    step: str = "1"


@dataclass(frozen=True)
class Choice:
    """One choice for the whole page.

    Attributes:
        name: of the field. label: what is chosen. value: what is chosen at first.
        options: pairs of a value and its text.
    """

    name: str
    label: Any
    value: str
    options: Sequence[tuple[str, Any]]


def ask(
    model_admin: ModelAdmin[Any],
    request: HttpRequest,
    rows: QuerySet[Any],
    *,
    title: Any,
    text: Any,
    heads: Sequence[Any],
    table: Sequence[Row],
    choice: Choice | None = None,
) -> TemplateResponse:
    """Return the page that shows what is about to be done, and asks for numbers and a reason.

    Confirmed, the same action is called again with `is_confirmed`. Its reference was chosen here, so that a
    page that is sent twice does once what it says.
    """
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.model._meta,
        "title": title,
        "text": text,
        "heads": heads,
        "table": table,
        "choice": choice,
        "keys": [str(row.pk) for row in rows],
        "action": request.POST["action"],
        "reason": reason(request),
        "reference": uuid4().hex[:12],
        "media": model_admin.media,
    }
    return TemplateResponse(request, "orders/admin_confirm.html", context)


def is_confirmed(request: HttpRequest) -> bool:
    """Return whether the page of `ask` was sent, rather than the list."""
    return "confirmed" in request.POST


def must_ask(model_admin: ModelAdmin[Any], request: HttpRequest) -> bool:
    """Return whether the page of `ask` has to be shown: at first, or again where no reason was given."""
    if not is_confirmed(request):
        return True
    if not reason(request):
        model_admin.message_user(request, _("Say why: the history keeps it."), messages.ERROR)
    return not reason(request)


def number(request: HttpRequest, field: str) -> int | None:
    """Return the number that was filled in, None where nothing was.

    Raises:
        ValueError: it is none; the message can be shown.
    """
    text = request.POST.get(field, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ValueError(_("%(text)s is not a whole number.") % {"text": repr(text[:40])})
    return int(text)


def too_many(model_admin: ModelAdmin[Any], request: HttpRequest, rows: QuerySet[Any]) -> bool:
    """Tell the user when more rows were chosen than can be asked about; return whether they were."""
    chosen = rows.count()
    if chosen > MOST_ROWS:
        text = _("%(chosen)s were chosen; choose at most %(most)s at a time.")
        model_admin.message_user(request, text % {"chosen": chosen, "most": MOST_ROWS}, messages.ERROR)
    return bool(chosen > MOST_ROWS)

"""What the admin pages of stock and orders share: pages to be read, and states with shape and colour."""

from __future__ import annotations

from typing import Any, Final

from django.contrib.admin.helpers import ActionForm
from django.forms import CharField
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

STYLES: Final = {"all": ("inventory/admin.css",)}

_SHAPES: Final = {"good": "●", "open": "○", "ended": "×", "warn": "▲"}


def badge(tone: str, text: Any) -> str:
    """Return `text` with the shape and the colour of `tone`: good, open, ended or warn."""
    return format_html('<span class="state state-{}">{} {}</span>', tone, _SHAPES[tone], text)


class ReadOnly:
    """Looking is all that anyone may do; what may be done more is an action."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """It comes about elsewhere."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Events can't be edited."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """The books refer to it."""
        return False


class ReasonForm(ActionForm):
    """Asks why, beside the choice of an action; the admin's history keeps it."""

    reason = CharField(label=_("Reason"), required=False, max_length=200)


def reason(request: HttpRequest) -> str:
    """Return the reason that was given, one line of it."""
    return " ".join(request.POST.get("reason", "").split())[:200]

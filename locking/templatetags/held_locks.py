"""Filters of the admin's pages about held locks."""

from __future__ import annotations

from django import template
from django.utils.html import format_html_join
from django.utils.safestring import mark_safe
from django.utils.translation import gettext

from locking.inspection import columns

register = template.Library()

register.filter("visible", columns.visible)
register.filter("shortened", columns.shortened)
register.filter("duration", columns.duration)


@register.filter
def breakable(holder: str) -> str:
    """Return a holder that a narrow column breaks after its colons, not in the middle of a word."""
    parts = ((part,) for part in columns.visible(holder).split(":"))
    return format_html_join(mark_safe(":<wbr>"), '<span class="held-part">{}</span>', parts)


@register.filter
def more_waiters(hold: columns.HeldLock, shown: int) -> str:
    """Return how many wait beside those that are shown, in words."""
    more = (hold.waiter_count or 0) - min(len(hold.waiting), shown)
    return gettext("and %(more)d more") % {"more": more} if more > 0 else ""

"""Filters of the admin's pages about held locks."""

from __future__ import annotations

from django import template
from django.utils.html import format_html_join
from django.utils.safestring import mark_safe
from django.utils.translation import gettext

from locking.core.kinds import LABELS
from locking.inspection import formatting
from locking.inspection.held import STATES, HeldLock

register = template.Library()

register.filter("visible", formatting.visible)
register.filter("shortened", formatting.shortened)
register.filter("duration", formatting.duration)
register.filter("state_name", lambda state: STATES[state])
register.filter("kind_name", lambda kind: LABELS[kind])


@register.filter
def breakable(holder: str) -> str:
    """Return a holder that a narrow column breaks after its colons, not in the middle of a word."""
    parts = ((part,) for part in formatting.visible(holder).split(":"))
    return format_html_join(mark_safe(":<wbr>"), '<span class="held-part">{}</span>', parts)


@register.filter
def share_left(hold: HeldLock) -> str:
    """Return which share of its lease a hold has left, 1 where it has no end."""
    if hold.remaining is None:
        return "1"
    return f"{hold.remaining / max(hold.ttl or 30.0, hold.remaining):.3f}"


@register.filter
def renewed(hold: HeldLock) -> str:
    """Return how often the lease was renewed, in words."""
    return gettext("renewed %(times)d×") % {"times": hold.renewals} if hold.renewals else ""


@register.filter
def more_waiters(hold: HeldLock, shown: int) -> str:
    """Return how many wait beside those that are shown, in words."""
    more = (hold.waiter_count or 0) - min(len(hold.waiting), shown)
    return gettext("and %(more)d more") % {"more": more} if more > 0 else ""

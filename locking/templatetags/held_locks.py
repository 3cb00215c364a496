"""Filters of the admin's pages about held locks."""

from __future__ import annotations

from django import template

from locking.inspection import formatting

register = template.Library()

register.filter("visible", formatting.visible)
register.filter("shortened", formatting.shortened)
register.filter("duration", formatting.duration)

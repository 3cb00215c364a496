"""A page for people: nothing inline, nothing cached, looked at only."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

# Everything on the pages comes from this server, in files: an injected script isn't run.
CONTENT_SECURITY_POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"


@never_cache
@require_safe
def page(request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
    """Answer with a page."""
    response = render(request, template, {"debug": settings.DEBUG, **context})
    response["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
    return response

"""What a view answers when it can't have its lock: 409 while another has it, 503 while nobody can tell."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Any, Final

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.utils.translation import gettext as _

from locking.exceptions import BackendError, LockError

PROBLEM: Final = "application/problem+json"
UNKNOWN_WAIT: Final = 5
"""Seconds in Retry-After when it isn't known how long the lock stays taken."""


def conflict_response(request: HttpRequest, error: LockError, message: Any = None) -> HttpResponse:
    """Answer a request whose lock was not to be had.

    Args:
        request: decides by its `Accept` between problem+json (RFC 9457) and a small page.
        error: LockNotAcquired becomes 409, BackendUnavailable 503.
        message: what to tell the visitor instead of the standard sentence.

    Returns:
        The response, with Retry-After. It names neither the lock nor its holder: no visitor's business.
    """
    status = HTTPStatus.SERVICE_UNAVAILABLE if isinstance(error, BackendError) else HTTPStatus.CONFLICT
    retry_after = _seconds(getattr(error, "retry_after", None))
    detail = str(message) if message is not None else _standard(status)
    answer = _problem if _wants_json(request) else _page
    response = answer(request, status, detail, retry_after)
    response["Retry-After"] = str(retry_after)
    response["Cache-Control"] = "no-store"
    return response


def _seconds(lease_left: float | None) -> int:
    return UNKNOWN_WAIT if lease_left is None else max(1, math.ceil(lease_left))


def _standard(status: HTTPStatus) -> str:
    if status is HTTPStatus.CONFLICT:
        return _("Someone else is working on this right now. Please try again in a moment.")
    return _("This can't be done safely right now. Please try again in a moment.")


def _wants_json(request: HttpRequest) -> bool:
    preferred = request.get_preferred_type(
        [PROBLEM, "application/json", "text/html", "application/xhtml+xml"]
    )
    return preferred is None or "json" in preferred


def _problem(request: HttpRequest, status: HTTPStatus, detail: str, retry_after: int) -> HttpResponse:
    kind = "lock-busy" if status is HTTPStatus.CONFLICT else "lock-unavailable"
    body = {
        "type": f"urn:holdfast:problem:{kind}",
        "title": status.phrase,
        "status": int(status),
        "detail": detail,
        "retry_after": retry_after,
    }
    return JsonResponse(body, status=status, content_type=PROBLEM, json_dumps_params={"ensure_ascii": False})


def _page(request: HttpRequest, status: HTTPStatus, detail: str, retry_after: int) -> HttpResponse:
    context = {"status": int(status), "detail": detail, "retry_after": retry_after}
    return HttpResponse(render_to_string("locking/conflict.html", context, request=request), status=status)

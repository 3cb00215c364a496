"""What a view answers without its lock: 409 while another holds it, 503 while the backend doesn't answer."""

from __future__ import annotations

import json
import logging
import math
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.template import Context, Engine, Template, TemplateDoesNotExist
from django.template.loader import render_to_string
from django.utils.translation import gettext_lazy as _

from locking import exceptions
from locking.core.handler import locks
from locking.utils.logs import log_rarely

logger = logging.getLogger(__name__)

PAGE: Final = "locking/conflict.html"
PROBLEM: Final = "application/problem+json"
BUSY: Final = _("Someone else is working on this right now. Please try again in a moment.")
LATE: Final = _("This took too long, and nothing was saved. Please try again in a moment.")
DOWN: Final = _("This can't be done safely right now. Please try again in a moment.")
KINDS: Final[tuple[tuple[Any, HTTPStatus, str, Any], ...]] = (
    (exceptions.TooManyWaiters, HTTPStatus.SERVICE_UNAVAILABLE, "crowded", DOWN),
    (exceptions.BackendError, HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", DOWN),
    (exceptions.LockExpired, HTTPStatus.CONFLICT, "expired", LATE),
    ((exceptions.LockLost, exceptions.StaleFencingToken), HTTPStatus.CONFLICT, "lost", LATE),
    (exceptions.LockError, HTTPStatus.CONFLICT, "busy", BUSY),
)
"""By the first that an error is one of: the status of the answer, what its `type` ends with, and its text."""

UNKNOWN_WAIT: Final = 5.0  # seconds in Retry-After when it isn't known how long the lock will be held


def conflict_response(
    request: HttpRequest, error: exceptions.LockError, message: Any = None, *, until_expiry: bool = False
) -> HttpResponse:
    """Answer a request whose lock could not be acquired, or was lost.

    Args:
        request: decides by its `Accept` between problem+json (RFC 9457) and a small page.
        error: BackendError and TooManyWaiters become 503, every other LockError 409; its kind is the `type`.
        message: what to tell the visitor instead of the standard sentence.
        until_expiry: the holder leaves the lock to its ttl, so `Retry-After` is what is left of that.

    Returns:
        The response, with Retry-After. It names neither the lock nor its holder: no visitor's business.

    Example:
        >>> try:  # doctest: +SKIP
        ...     with locked_transaction("order:42"):
        ...         pay()
        ... except LockError as error:
        ...     return conflict_response(request, error)
    """
    _kinds, status, kind, text = next(answer for answer in KINDS if isinstance(error, answer[0]))
    retry_after = max(1, math.ceil(_seconds(error, until_expiry=until_expiry)))
    detail = str(text if message is None else message)
    types = [PROBLEM, "application/json", "text/html", "application/xhtml+xml"]
    if "json" in (request.get_preferred_type(types) or PROBLEM):
        body = {"type": f"urn:holdfast:problem:lock-{kind}", "title": status.phrase, "status": int(status)}
        text = json.dumps(body | {"detail": detail, "retry_after": retry_after}, ensure_ascii=False)
        response = HttpResponse(text, status=status, content_type=PROBLEM)
    else:
        response = _page(request, status, detail, retry_after)
    response["Retry-After"] = str(retry_after)
    response["Cache-Control"] = "no-store"
    return response


def _seconds(error: exceptions.LockError, *, until_expiry: bool) -> float:
    """Return when a repeated request will probably find the lock free."""
    # That is the time for which such locks were held lately, not the rest of the lease: a holder mostly
    # releases its lock long before, and a renewed lease never comes to its end.
    if not isinstance(error, exceptions.LockNotAcquired):
        return UNKNOWN_WAIT
    left = math.inf if error.retry_after is None else error.retry_after
    if until_expiry and left < math.inf:
        return left
    chosen = locks[error.backend].settings.retry_after if error.backend in locks else None
    if chosen is not None:
        return chosen
    return min(left, UNKNOWN_WAIT if error.estimate is None else error.estimate)


def _page(request: HttpRequest, status: HTTPStatus, detail: str, retry_after: int) -> HttpResponse:
    context = {"status": int(status), "detail": detail, "retry_after": retry_after}
    try:
        text = render_to_string(PAGE, context, request=request)
    except TemplateDoesNotExist as error:
        if error.args != (PAGE,):  # the project's own page extends one that isn't there
            raise
        message = "no template %s: a built-in page answers; set APP_DIRS, and add 'locking' to INSTALLED_APPS"
        log_rarely(logger, logging.WARNING, PAGE, message, PAGE)
        text = _built_in_page().render(Context(context))
    return HttpResponse(text, status=status)


@cache
def _built_in_page() -> Template:
    folder = Path(__file__).parent.parent / "templates"
    return Engine([str(folder)], libraries={"i18n": "django.templatetags.i18n"}).get_template(PAGE)

"""Security headers for everything, and two stacks: pages get all middleware, JSON only what protects it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.core.handlers.exception import convert_exception_to_response
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.clickjacking import XFrameOptionsMiddleware
from django.middleware.security import SecurityMiddleware
from django.utils import translation
from django.utils.module_loading import import_string

API_PATHS: Final = (
    "/checkout",
    "/orders/",
    "/reservations/",
    "/payments/",
    "/products/",
    "/openapi.json",
    "/lab/checkout/",
    "/livez",
    "/readyz",
    "/metrics",
)


PAGE_POLICY: Final = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
DATA_POLICY: Final = "default-src 'none'; frame-ancestors 'none'"


class SecurityHeaders(SecurityMiddleware, XFrameOptionsMiddleware):
    """All of Django's security headers, and a Content-Security-Policy where the view has set none.

    One middleware in place of two: each layer costs every request its call. What Django adds is the same for
    all answers of a kind, so it is asked once for each kind.
    """

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        super().__init__(get_response)
        self._added: dict[tuple[str, bool, bool], dict[str, tuple[str, str]]] = {}

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        """Add the headers that the answer doesn't have."""
        # Django's own mapping checks both texts of each header again, ten times what a request can spare.
        present = response.headers._store
        is_page = present.get("content-type", ("", ""))[1].startswith("text/html")
        policy = PAGE_POLICY if is_page else DATA_POLICY
        if response.status_code in (404, 500) and settings.DEBUG:  # Django's own page has its style in it
            policy = ""
        kind = (
            policy,
            bool(getattr(response, "xframe_options_exempt", False)),
            bool(self.sts_seconds and request.is_secure()),
        )
        if kind not in self._added:
            self._added[kind] = self._headers_of(request, *kind[:2])
        present.update(self._added[kind] | present)
        return response

    def _headers_of(self, request: HttpRequest, policy: str, exempt: bool) -> dict[str, tuple[str, str]]:
        """Return what Django adds to an answer without headers, as its mapping stores them."""
        response = HttpResponse()
        if policy:
            response.headers["Content-Security-Policy"] = policy
        if not exempt:
            XFrameOptionsMiddleware.process_response(self, request, response)
        SecurityMiddleware.process_response(self, request, response)
        del response.headers["Content-Type"]
        return response.headers._store


class PageMiddleware:
    """Send requests for pages through `settings.PAGE_MIDDLEWARE`, and requests for `API_PATHS` past it.

    The API takes no cookie, so it needs no session, user, message, CSRF token or language: without them an
    empty answer costs half. What adds security headers stays in `MIDDLEWARE`, before this.
    """

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._api = self._pages = get_response
        self._view_hooks: list[Callable[..., HttpResponseBase | None]] = []
        for path in reversed(settings.PAGE_MIDDLEWARE):
            middleware = import_string(path)(self._pages)
            self._pages = convert_exception_to_response(middleware)
            if hasattr(middleware, "process_view"):
                self._view_hooks.insert(0, middleware.process_view)
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        """Answer, or under ASGI return the coroutine that does."""
        if not request.path_info.startswith(API_PATHS):
            return self._page(request)
        answer = self._api(request)
        return _await_length(answer) if self._is_async else _with_length(answer)

    def _page(self, request: HttpRequest) -> Any:
        try:
            return self._pages(request)
        finally:
            translation.deactivate()  # the thread's next request may be for JSON, in the default language

    def process_view(self, request: HttpRequest, *view: Any) -> HttpResponseBase | None:
        """Let the pages' middleware look at the view; the first answer counts."""
        if request.path_info.startswith(API_PATHS):
            return None
        answers = (hook(request, *view) for hook in self._view_hooks)
        return next((answer for answer in answers if answer is not None), None)


def _with_length(response: HttpResponseBase) -> HttpResponseBase:
    """Say how long an answer is, as CommonMiddleware does for pages; it would be sent in chunks otherwise."""
    if isinstance(response, HttpResponse):
        length = str(len(response.content))
        response.headers._store.setdefault("content-length", ("Content-Length", length))
    return response


async def _await_length(answer: Awaitable[HttpResponseBase]) -> HttpResponseBase:
    return _with_length(await answer)

"""The WSGI entry point that the web server serves."""

import gc
import io
import os
from collections.abc import Callable, Iterable
from typing import Any, Final

import django
from django.conf import settings
from django.core.cache import close_caches
from django.core.exceptions import BadRequest, SuspiciousOperation
from django.core.handlers.base import reset_urlconf
from django.core.handlers.wsgi import WSGIHandler, WSGIRequest
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, reset_queries
from django.http import FileResponse, HttpRequest, HttpResponse
from django.urls import ResolverMatch

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

DJANGO_REDIS: Final = "django_redis.cache.RedisCache"

MOST: Final = 1 << 20
"""Bytes of a chunked body that are read; the views' own limits are smaller and refuse what is cut here."""


def reading_chunked(application: Application) -> Application:
    """Give Django a chunked body of a known length: without Content-Length it takes every body for empty."""

    def read(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if "HTTP_TRANSFER_ENCODING" in environ and not environ.get("CONTENT_LENGTH"):
            body = environ["wsgi.input"].read(MOST)
            environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        return application(environ, start_response)

    return read


def in_one_piece(application: Application) -> Application:
    """Give the server an answer that isn't generated piece by piece as a list, closed.

    granian sends that at once, from outside of Python. Of anything else it asks for one piece after the
    other, so a client that doesn't read keeps a thread: a file, whose size is bounded, is read at once, too.
    """

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        response = application(environ, start_response)
        if isinstance(response, FileResponse):
            content = b"".join(response)
        elif isinstance(response, HttpResponse):
            content = response.content
        else:
            return response
        response.close()
        return [content]

    return answer


class Request(WSGIRequest):
    """Django's, which also comes to be with a Content-Type that can't be read.

    Django raises for an unknown RFC 2231 charset, or one of no text, outside of every handler of errors,
    so the client would get no answer; so it does for too many parameters in the address beside any
    charset. Here the views refuse it like any other that they do not know.
    """

    def __init__(self, environ: dict[str, Any]) -> None:
        place = {name: environ.get(name, "") for name in ("PATH_INFO", "SCRIPT_NAME")}
        try:
            super().__init__(environ)
        except (BadRequest, SuspiciousOperation, LookupError, ValueError):
            # Django has begun: the path is decoded already, and the charset would read the address again.
            environ |= place | {"CONTENT_TYPE": "unreadable"}
            self._encoding = None
            super().__init__(environ)


class Handler(WSGIHandler):
    """Django's handler, which looks a fixed address up once.

    An address without arguments always leads to the same view, and finding it again took an eighth of an
    order's Python.
    """

    request_class = Request

    def __init__(self) -> None:
        super().__init__()
        self._fixed: dict[str, ResolverMatch] = {}

    def resolve_request(self, request: HttpRequest) -> ResolverMatch:
        """Return the view of the request's address, and remember it where the address is the whole route."""
        match = self._fixed.get(request.path_info)
        if match is None or hasattr(request, "urlconf"):
            match = super().resolve_request(request)
            if match.route == request.path_info.removeprefix("/") and not hasattr(request, "urlconf"):
                self._fixed[request.path_info] = match
        request.resolver_match = match
        return match


def detach_receivers() -> None:
    """Spare a request those of Django's receivers that do nothing for it, half of an order's signals.

    Connections are looked at once, at the end of a request: that closes what is too old or unusable and has
    the next request check what it finds. So a connection may be used once after `CONN_MAX_AGE`, checked. A
    request sets its own URLconf at its beginning, and django-redis keeps its connections anyway.
    """
    request_started.disconnect(close_old_connections)
    request_finished.disconnect(reset_urlconf)
    if not settings.DEBUG:
        request_started.disconnect(reset_queries)  # nothing is logged that could be reset
    if all(cache["BACKEND"] == DJANGO_REDIS for cache in settings.CACHES.values()):
        request_finished.disconnect(close_caches)


django.setup(set_prefix=False)
application = reading_chunked(in_one_piece(Handler()))
detach_receivers()

# What was loaded stays for good. A full collection would walk through it each time: 60 ms in which no thread
# of the worker serves a request.
gc.collect()
gc.freeze()

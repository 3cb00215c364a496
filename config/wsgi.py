"""The WSGI entry point that the web server serves."""

import gc
import io
import os
from collections.abc import Callable, Iterable
from typing import Any, Final

from django.conf import settings
from django.core.signals import request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections, reset_queries

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

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


def begin_lightly() -> None:
    """Leave to the end of a request what Django does with connections at its beginning, too.

    The end closes what is too old or unusable and has the next request check what it finds. So a connection
    may be used once after `CONN_MAX_AGE`, checked. Django's five receivers at both ends take a sixth of an
    order's Python; these are two of them.
    """
    request_started.disconnect(close_old_connections)
    if not settings.DEBUG:
        request_started.disconnect(reset_queries)  # nothing is logged that could be reset


application = reading_chunked(get_wsgi_application())
begin_lightly()

# What was loaded stays for good. A full collection would walk through it each time: 60 ms in which no thread
# of the worker serves anybody.
gc.collect()
gc.freeze()

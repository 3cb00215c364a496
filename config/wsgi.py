"""The WSGI entry point that the web server serves."""

import gc
import io
import os
from collections.abc import Callable, Iterable
from typing import Any, Final

from django.core.wsgi import get_wsgi_application

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


application = reading_chunked(get_wsgi_application())

# What was loaded stays for good. A full collection would walk through it each time: 60 ms in which no thread
# of the worker serves anybody.
gc.collect()
gc.freeze()

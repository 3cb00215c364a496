"""What every view that reads a body asks of the request before it reads one."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest

from orders.parsing import MAX_BODY_BYTES
from orders.problems import MEDIA_TYPE, NOT_FOUND, TOO_LARGE, Problem


def require_small_json(request: HttpRequest) -> None:
    """Refuse by the headers alone, before a byte of the body is read.

    Raises:
        Problem: the body is not plain JSON in UTF-8, or too long.
    """
    charset = (request.content_params or {}).get("charset", "utf-8")
    encoding = request.META.get("HTTP_CONTENT_ENCODING", "identity")
    if request.content_type != "application/json" or charset.lower() not in ("utf-8", "utf8"):
        shown = request.headers.get("Content-Type") or "missing"
        raise Problem(MEDIA_TYPE, f"Content-Type is {shown[:80]}; send application/json in UTF-8.")
    if encoding.lower() != "identity":
        raise Problem(MEDIA_TYPE, f"Content-Encoding is {encoding[:80]}; send the body uncompressed.")
    if int(request.META.get("CONTENT_LENGTH") or 0) > MAX_BODY_BYTES:
        raise Problem(TOO_LARGE, f"The body is larger than {MAX_BODY_BYTES} bytes.")


def id_in_path(text: str, missing: str) -> UUID:
    """Return the id in an address; what is no UUID is the id of nothing.

    Raises:
        Problem: 404, with `missing` as its detail.
    """
    try:
        return UUID(text)
    except ValueError:
        raise Problem(NOT_FOUND, missing) from None

"""One way to page: `limit`, `cursor`, and the following page's address in the body and in the header Link."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse

from orders.http.bodies import PAGE, Paging
from orders.http.problems import invalid, shown

Place = TypeVar("Place")


def place_of(paging: Paging, read: Callable[[str], Place]) -> Place | None:
    """Return where the page begins, as `read` makes it of the cursor's text; None for the first page.

    Raises:
        Problem: the cursor isn't one that was answered.
    """
    if not paging.cursor:
        return None
    try:
        padding = "=" * (-len(paging.cursor) % 4)
        return read(urlsafe_b64decode(paging.cursor + padding).decode())
    except ValueError:  # of base64, of Unicode, and of what the text is to be
        raise invalid(
            ("", f"has cursor={shown(paging.cursor)} in its address, which is no cursor; follow `next`")
        ) from None


def following(
    request: HttpRequest, response: HttpResponse, paging: Paging, rows: Sequence[Any], text: str
) -> str | None:
    """Return the address of the following page, to which `response` links; None after the last page.

    Args:
        rows: of this page, and one more if there are more.
        text: of the place after which the following page begins.
    """
    if len(rows) <= paging.limit:
        return None
    cursor = urlsafe_b64encode(text.encode()).decode().rstrip("=")
    query: dict[str, Any] = {"limit": paging.limit} if paging.limit != PAGE else {}
    address = f"{request.path}?{urlencode({**query, 'cursor': cursor})}"
    response.headers["Link"] = f'<{address}>; rel="next"'
    return address

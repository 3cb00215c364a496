"""Times, numbers and names as people read them."""

from __future__ import annotations

import time
import unicodedata
from typing import Final

from django.utils.translation import gettext

LONGEST_NAME: Final = 80
"""Characters of a lock's name that a list shows; its own page shows all of it."""


def visible(text: str) -> str:
    """Return a text in which control and format characters are seen: one of them could turn it round.

    Example:
        >>> visible("a\u202eb")
        'a⟨U+202E⟩b'
    """
    if text.isprintable() and text.isascii():
        return text
    return "".join(
        f"⟨U+{ord(letter):04X}⟩" if unicodedata.category(letter) in ("Cc", "Cf", "Zl", "Zp") else letter
        for letter in text
    )


def shortened(text: str) -> str:
    """Return a text as a list shows it: visible, and cut in the middle to `LONGEST_NAME`."""
    return cut(visible(text), LONGEST_NAME)


def cut(text: str, most: int) -> str:
    """Return a text of at most so many characters: what tells names apart is often at their end.

    Example:
        >>> cut("order:2026-11-26:42", 11)
        'order…26:42'
    """
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"


def duration(seconds: float | None) -> str:
    """Return a length of time in its two largest units: 12.3 s, 4 min 10 s, 2 h 5 min, 3 d 1 h."""
    if seconds is None:
        return "–"
    if seconds < 0.1:
        return gettext("%.1f ms") % (seconds * 1000)
    if seconds < 60:
        return gettext("%.1f s") % seconds
    whole = int(seconds)
    if seconds < 3600:
        return gettext("%(minutes)d min %(seconds)d s") % {"minutes": whole // 60, "seconds": whole % 60}
    if seconds < 86400:
        return gettext("%(hours)d h %(minutes)d min") % {
            "hours": whole // 3600,
            "minutes": whole // 60 % 60,
        }
    return gettext("%(days)d d %(hours)d h") % {"days": whole // 86400, "hours": whole // 3600 % 24}


def age(moment: float | None) -> str | None:
    """Return how long ago a Unix time was."""
    return None if moment is None else gettext("%s ago") % duration(max(0.0, time.time() - moment))  # noqa: TID251 shown

"""Times, numbers and names as people read them."""

from __future__ import annotations

import time
from typing import Final

from django.utils.translation import gettext

LONGEST_NAME: Final = 80  # characters of a lock's name that a list shows; its own page shows all of it


def visible(text: str) -> str:
    """Return a text in which control and format characters are seen: one could turn it round, or be obeyed
    by a terminal.

    Example:
        >>> visible("a\u202eb")
        'a⟨U+202E⟩b'
    """
    return "".join(letter if letter.isprintable() else f"⟨U+{ord(letter):04X}⟩" for letter in text)


def shortened(text: str) -> str:
    """Return a text as a list shows it: visible, and cut in the middle, for its end tells names apart, too.

    Example:
        >>> shortened("order:" + 90 * "7" + ":42")[36:46]
        '7777…77777'
    """
    shown = visible(text)
    if len(shown) <= LONGEST_NAME:
        return shown
    half = (LONGEST_NAME - 1) // 2
    return f"{shown[: LONGEST_NAME - 1 - half]}…{shown[-half:]}"


def duration(seconds: float) -> str:
    """Return a length of time in its two largest units: 12.3 s, 4 min 10 s, 2 h 5 min, 3 d 1 h."""
    if seconds < 0.1:
        return gettext("%.1f ms") % (seconds * 1000)
    if seconds < 60:
        return gettext("%.1f s") % seconds
    minutes, whole = divmod(int(seconds), 60)
    if seconds < 3600:
        return gettext("%(minutes)d min %(seconds)d s") % {"minutes": minutes, "seconds": whole}
    hours, minutes = divmod(minutes, 60)
    if seconds < 86400:
        return gettext("%(hours)d h %(minutes)d min") % {"hours": hours, "minutes": minutes}
    return gettext("%(days)d d %(hours)d h") % {"days": hours // 24, "hours": hours % 24}


def age(moment: float) -> str:
    """Return how long ago a Unix time was."""
    return gettext("%s ago") % duration(max(0.0, time.time() - moment))  # noqa: TID251 shown

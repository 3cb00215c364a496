"""Races a team's own checkout: does it sell more than there is?

It works on code that uses nothing of this package: it calls a function or a URL from many threads and
processes, lets the buyers meet right before they write, and counts.
"""

from inventory.racing.engine import RaceError, race
from inventory.racing.result import Race

__all__ = ["Race", "RaceError", "race"]

"""A check for django-health-check: does a lock backend answer?

from health_check.views import HealthCheckView

HealthCheckView.as_view(checks=[("locking.contrib.health_check.LockBackend", {"alias": "default"})])
"""

from __future__ import annotations

import dataclasses
from functools import cache

from health_check.base import HealthCheck
from health_check.exceptions import ServiceUnavailable

from locking.contrib.health import WITHIN, Probes


@dataclasses.dataclass
class LockBackend(HealthCheck):  # type: ignore[misc]  # the library has no types
    """Asks a lock backend for the holder of a lock; one that hangs is asked once, not once per request.

    Args:
        alias: of `LOCKING`.
        name: the lock whose holder is asked for; a Redis user that is limited to some keys must be allowed
            to read it.
        within: seconds in which it must have answered.
    """

    alias: str = "default"
    name: str = dataclasses.field(default="holdfast:readyz", repr=False)
    within: float = dataclasses.field(default=WITHIN, repr=False)

    def run(self) -> None:  # the library runs it in a thread
        """Raise ServiceUnavailable unless the backend answers in time."""
        for title, answer in _probes(self.alias, self.name).ask(self.within).items():
            if not answer["ok"]:
                raise ServiceUnavailable(f"{title}: {answer['error']}")


@cache
def _probes(alias: str, name: str) -> Probes:
    return Probes([], [alias], name)

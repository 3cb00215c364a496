"""Views for monitoring: is the process alive, and can it serve?

urlpatterns += [
    path("livez", locking.contrib.health.livez),      # touches no server: a restart wouldn't heal one
    path("readyz", locking.contrib.health.readyz),    # asks every database and every lock backend
]
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from django.db import connections
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from locking.core.handler import locks
from locking.exceptions import LockNotSupported
from locking.keys.names import Seconds, check_name, check_ttl
from locking.utils.background import after_fork, start_thread
from locking.utils.clock import now

__all__ = ["livez", "readiness", "readyz"]

logger = logging.getLogger(__name__)

View = Callable[[HttpRequest], HttpResponse]

WITHIN: Final = 2.0  # seconds in which every server must have answered


@never_cache
@require_safe
def livez(request: HttpRequest) -> HttpResponse:
    """Answer 200 for as long as the process can answer at all."""
    return JsonResponse({"status": "ok"})


def readiness(
    *,
    databases: Sequence[str] | None = None,
    locks_on: Sequence[str] | None = None,
    within: Seconds = WITHIN,
    name: str = "holdfast:readyz",
) -> View:
    """Return a view that answers 200 when every server answers in time, and else 503, with a line for each.

    Args:
        databases: aliases to ask; None = all of `DATABASES`.
        locks_on: aliases to ask; None = all of `LOCKING`.
        within: seconds for all of them together. A server that hangs is asked once, not once a request.
        name: the lock whose holder is asked for; a Redis user that is limited to some keys must be allowed
            to read it.

    Example:
        >>> readyz = readiness(databases=["default"], within=1.0)
    """
    limit = check_ttl(within, source="within")
    probes = Probes(databases, locks_on, check_name(name))

    @never_cache
    @require_safe
    def readyz(request: HttpRequest) -> HttpResponse:
        """Answer 200 where every database and lock backend answers, 503 otherwise."""
        answers = probes.ask(limit)
        ready = all(answer["ok"] for answer in answers.values())
        body = {"status": "ok" if ready else "failing", "checks": answers}
        return JsonResponse(body, status=200 if ready else 503)

    return readyz


class Probes:
    """One question at a time per server, each in a thread of its own."""

    def __init__(self, databases: Sequence[str] | None, locks_on: Sequence[str] | None, name: str) -> None:
        self._databases, self._locks_on, self._name = databases, locks_on, name
        self.forget()
        after_fork(self.forget)

    def forget(self) -> None:
        """Reset in a forked child: the threads stayed with its parent."""
        self._beginning = threading.Lock()
        self._attempts: dict[str, Probe] = {}

    def ask(self, within: float) -> dict[str, dict[str, Any]]:
        """Ask all at once and return what each said until the time was over."""
        deadline = now() + within
        databases = connections if self._databases is None else self._databases
        aliases = locks if self._locks_on is None else self._locks_on
        steps = {f"database {alias}": partial(ask_database, alias) for alias in databases}
        steps |= {f"locks {alias}": partial(ask_backend, alias, self._name) for alias in aliases}
        begun = {title: self._begin(title, step) for title, step in steps.items()}
        return {title: probe.answer(deadline - now()) for title, probe in begun.items()}

    def _begin(self, title: str, step: Callable[[], None]) -> Probe:
        """Return the attempt that is under way, or a new one."""
        with self._beginning:
            probe = self._attempts.get(title)
            if probe is None or probe.done():
                probe = Probe(title)
                if start_thread("locking-call-health", partial(probe.run, step)):
                    self._attempts[title] = probe  # without a thread the next request tries again
            return probe


class Probe(Future[float]):
    """One question; its result is the seconds that the answer took."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self.title, self.begun = title, now()

    def run(self, step: Callable[[], None]) -> None:
        """Ask."""
        try:
            step()
            self.set_result(now() - self.begun)
        except Exception as error:
            self.set_exception(error)

    def answer(self, within: float) -> dict[str, Any]:
        """Return what is shown. Only the log has the error's words: they may name hosts."""
        try:
            return {"ok": True, "milliseconds": round(self.result(max(0.0, within)) * 1000, 1)}
        except Exception as error:
            if not self.done():
                return {"ok": False, "error": f"no answer for {now() - self.begun:.1f} s"}
            logger.warning("not ready: %s: %s", self.title, error)
            return {"ok": False, "error": type(error).__name__}


def ask_database(alias: str) -> None:
    """Have the database answer over a new connection; whatever it raises says that it can't."""
    try:
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT 1")
    finally:
        connections[alias].close()


def ask_backend(alias: str, name: str) -> None:
    """Ask a lock backend for the holder of a lock, or where it can't tell any, whether it is there."""
    backend = locks[alias]
    try:
        backend.holder(backend.key(name))
    except LockNotSupported:
        backend.check(live=True)


readyz: Final = readiness()

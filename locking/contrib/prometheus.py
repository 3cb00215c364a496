"""Prometheus: how often locks are got and refused, how long callers wait for them and hold them.

    INSTALLED_APPS += ["locking.contrib.prometheus.LockMetrics"]
    urlpatterns += [path("metrics", locking.contrib.prometheus.metrics_view)]

The label `lock` is the group of a name (see `locking.contrib.groups`), never the name itself. Under several
processes (web workers, Celery) set PROMETHEUS_MULTIPROC_DIR as prometheus_client wants it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from django.apps import AppConfig
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from locking.contrib.groups import DEFAULTS, Groups, read_setting
from locking.core.lease import live_leases
from locking.liveness import start_of
from locking.signals import LockEvent, Observer, Renewal, observe
from locking.utils.background import after_fork
from locking.utils.clock import now

__all__ = ["LockMetrics", "instrument", "metrics_view"]

LABELS: Final = ("backend", "lock")
RECOUNT_EVERY: Final = 5.0
"""Seconds after which holds that ended without a word are looked for: the next event then settles them."""


class LockMetrics(AppConfig):
    """What `INSTALLED_APPS` takes: counts from the start of the process."""

    name = "locking.contrib.prometheus"
    label = "locking_prometheus"

    def ready(self) -> None:
        setting = read_setting()
        instrument(Groups(setting["GROUP"], setting["MOST_GROUPS"]), setting["BUCKETS"])


class Meter(Observer):
    """The metrics, and the observer that feeds them."""

    def __init__(
        self,
        groups: Groups | None = None,
        buckets: list[float] = DEFAULTS["BUCKETS"],
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self.groups = groups or Groups()
        self._recounted_at = now()
        self.forget()
        after_fork(self.forget)
        where: dict[str, Any] = {"registry": registry}
        timed = where | {"buckets": buckets}
        gauge = where | {"multiprocess_mode": "livesum"}
        outcomes = (*LABELS, "outcome")
        self.acquisitions = Counter("locking_acquisitions", "Acquisitions by outcome.", outcomes, **where)
        self.wait = Histogram("locking_wait_seconds", "Wait, whatever came of it.", LABELS, **timed)
        self.hold = Histogram("locking_hold_seconds", "Time from grant to end.", LABELS, **timed)
        self.held = Gauge("locking_held", "Locks that these processes hold.", LABELS, **gauge)
        self.waiters = Gauge("locking_waiters", "Callers that wait.", LABELS, **gauge)
        self.lost = Counter("locking_lost", "Leases that ended too early.", LABELS, **where)
        self.forced = Counter("locking_force_releases", "Holds broken by force.", LABELS, **where)
        self.orphaned = Counter("locking_orphaned", "Locks released for dead processes.", LABELS, **where)
        by = ("backend", "outcome")
        self.renewals = Counter("locking_renewals", "Leases due for renewal, by outcome.", by, **where)

    def forget(self) -> None:
        """Reset in a forked child: its parent's holds aren't its own, nor are its parent's mutexes."""
        self._series: dict[tuple[str, str], Series] = {}

    def happened(self, event: LockEvent) -> None:
        self.series(event.backend, event.name, event.template).happened(event)
        if now() - self._recounted_at > RECOUNT_EVERY:
            self.recount()

    def waiting(self, name: str, template: str | None, backend: str, change: int) -> None:
        self.series(backend, name, template).waiters.inc(change)

    def renewed(self, backend: str, outcome: Renewal, leases: int) -> None:
        self.renewals.labels(backend, outcome).inc(leases)

    def series(self, backend: str, name: str, template: str | None) -> Series:
        """Return what is counted of a group; looked up, because prometheus_client's labels() is slow."""
        which = (backend, self.groups.of(name, template))
        found = self._series.get(which)
        return found if found is not None else self._series.setdefault(which, Series(self, which))

    def recount(self) -> None:
        """Subtract leases that ended unreported: dropped, or not released because of an outage."""
        self._recounted_at = now()
        counted = [(series, series.owners.copy()) for series in list(self._series.values())]
        live = {lease.owner for lease in live_leases() if lease.open}
        for series, owners in counted:  # those from before: what other threads take meanwhile is live
            for owner in owners - live:
                series.forget(owner)


class Series:
    """What is counted of one group on one backend."""

    def __init__(self, meter: Meter, labels: tuple[str, str]) -> None:
        self.owners: set[str] = set()
        """Those of the holds that are counted."""
        self._acquisitions, self._labels = meter.acquisitions, labels
        self.granted = meter.acquisitions.labels(*labels, "acquired")
        self.wait, self.hold = meter.wait.labels(*labels), meter.hold.labels(*labels)
        self.held, self.waiters = meter.held.labels(*labels), meter.waiters.labels(*labels)
        ended = {"lost": meter.lost, "force_released": meter.forced, "orphaned": meter.orphaned}
        self._ended = {outcome: counter.labels(*labels) for outcome, counter in ended.items()}
        self.held.set(0)  # a forked child has its parent's figures
        self.waiters.set(0)

    def happened(self, event: LockEvent) -> None:
        """Count an event; a hold that another process ended by force is counted off by its own."""
        if event.outcome in ("acquired", "contended", "unavailable", "deadlock"):
            self.wait.observe(event.waited or 0.0)
            if event.outcome == "acquired":
                self.granted.inc()
                self.owners.add(event.owner)
                self.held.inc()
            else:
                self._acquisitions.labels(*self._labels, event.outcome).inc()
            return
        if event.outcome in self._ended:
            self._ended[event.outcome].inc()
        if event.outcome not in ("force_released", "orphaned"):
            self.hold.observe(event.held or 0.0)
            self.forget(event.owner)

    def forget(self, owner: str) -> None:
        """Count a hold off once: its end may be reported and looked for at the same time."""
        with suppress(KeyError):
            self.owners.remove(owner)
            self.held.dec()


_meter: Meter | None = None


def instrument(groups: Groups | None = None, buckets: list[float] = DEFAULTS["BUCKETS"]) -> Meter:
    """Begin to count in prometheus_client's own registry; a second call changes nothing.

    Args:
        groups: how names are grouped.
        buckets: upper limits of the histograms, in seconds.
    """
    global _meter
    if _meter is None:
        _meter = Meter(groups, buckets)
    observe(_meter)
    return _meter


@never_cache
@require_safe
def metrics_view(request: HttpRequest) -> HttpResponse:
    """Answer a scrape with all of prometheus_client's registry, of all processes where they share a folder.

    It has no authentication: keep it from the public by the server in front, or by a decorator.
    """
    if _meter is not None:
        _meter.recount()
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(_registry()), headers={"Content-Type": content_type})


def _registry() -> CollectorRegistry:
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if folder is None:
        return REGISTRY
    # What killed processes held leaves the shared gauges; their counters stay. A server's own hook for ended
    # workers does the same, where there is one and it is called.
    for pid in {int(path.stem.rpartition("_")[2]) for path in Path(folder).glob("gauge_live*_*.db")}:
        if start_of(pid) == "":
            with suppress(FileNotFoundError):  # another scrape was quicker
                mark_process_dead(pid)  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return registry

"""OpenTelemetry: a span for the wait for a lock and a span for its hold, in the trace of the caller that
takes it.

    INSTALLED_APPS += ["locking.contrib.opentelemetry.LockTracing"]

Spans carry the lock's name; their own names have its group (see `locking.contrib.groups`), so there are few.
Neither becomes the current span: what runs under the lock stays where it was in the trace.
"""

from __future__ import annotations

import threading
from typing import Final

from django.apps import AppConfig
from opentelemetry.trace import Link, Span, Status, StatusCode, Tracer, TracerProvider, get_tracer
from opentelemetry.util.types import AttributeValue

from locking.contrib.groups import Groups, read_setting
from locking.signals import LockEvent, Observer, observe
from locking.utils.background import after_fork

__all__ = ["LockTracing", "instrument"]

NANOSECONDS: Final = 1e9  # of a second

MOST_OPEN: Final = 10_000
"""Holds whose end is awaited; the oldest beyond that get none: their users dropped them without a release."""


class LockTracing(AppConfig):
    """What `INSTALLED_APPS` takes: traces from the start of the process."""

    name = "locking.contrib.opentelemetry"
    label = "locking_opentelemetry"

    def ready(self) -> None:
        setting = read_setting()
        instrument(groups=Groups(setting["GROUP"], setting["MOST_GROUPS"]))


class Spans(Observer):
    """The observer that makes the spans."""

    def __init__(self, tracer: Tracer, groups: Groups | None = None) -> None:
        self._tracer = tracer
        self._groups = groups or Groups()
        self.forget()
        after_fork(self.forget)

    def forget(self) -> None:
        """Reset in a forked child: its parent ends its own holds."""
        self._changing = threading.Lock()
        self._holds: dict[str, Span] = {}

    def happened(self, event: LockEvent) -> None:
        if event.outcome in ("acquired", "contended", "unavailable", "deadlock"):
            wait = self._begin("acquire", event, event.at - (event.waited or 0.0))  # in the past: it is over
            _end(wait, event)
            if event.outcome == "acquired":
                hold = self._begin("hold", event, event.at, Link(wait.get_span_context()))
                if hold.is_recording():
                    with self._changing:
                        self._holds[event.owner] = hold
                        if len(self._holds) > MOST_OPEN:
                            del self._holds[next(iter(self._holds))]
        elif event.outcome not in ("force_released", "orphaned"):
            with self._changing:
                ended = self._holds.pop(event.owner, None)
            if ended is not None:
                ended.set_attributes(attributes(event))
                _end(ended, event)

    def _begin(self, what: str, event: LockEvent, at: float, *links: Link) -> Span:
        name = f"{what} {self._groups.of(event.name, event.template)}"
        start = int(at * NANOSECONDS)
        return self._tracer.start_span(name, attributes=attributes(event), links=links, start_time=start)


def attributes(event: LockEvent) -> dict[str, AttributeValue]:
    """Return an event as attributes of a span; what isn't known is left out."""
    names = ("name", "template", "backend", "outcome", "owner", "holder", "ttl", "waited", "held")
    values = {**{name: getattr(event, name) for name in names}, "fencing_token": event.token or None}
    return {f"locking.{name}": value for name, value in values.items() if value is not None}


ERRORS: Final = {
    "unavailable": "the lock backend didn't answer",
    "deadlock": "the locks wait for each other in a circle",
    "lost": "the lease ended before its holder was done",
}


def _end(span: Span, event: LockEvent) -> None:
    if error := ERRORS.get(event.outcome):
        span.set_status(Status(StatusCode.ERROR, error))
    span.end(int(event.at * NANOSECONDS))


_spans: Spans | None = None


def instrument(tracer_provider: TracerProvider | None = None, groups: Groups | None = None) -> Spans:
    """Begin to trace; a second call changes nothing.

    Args:
        tracer_provider: who makes the spans. None: OpenTelemetry's global one, whenever it is set.
        groups: how names are grouped.
    """
    global _spans
    if _spans is None:
        _spans = Spans(get_tracer("holdfast.locking", tracer_provider=tracer_provider), groups)
    observe(_spans)
    return _spans

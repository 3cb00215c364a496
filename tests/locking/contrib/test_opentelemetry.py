"""Traces: one span for the wait and one for the hold, in the trace of the caller that took the lock."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import get_tracer

from locking import BackendUnavailable, LockLost, get_lock
from locking.contrib import opentelemetry
from locking.contrib.opentelemetry import Spans
from locking.testing import simulate_contention, simulate_loss
from tests.locking.support.observing import observed_by


@pytest.fixture
def tracer():
    """A tracer whose finished spans lie in `spans`."""
    return TracerProvider()


@pytest.fixture
def spans(tracer, memory_locks):
    """What was traced so far, oldest first."""
    exporter = InMemorySpanExporter()
    tracer.add_span_processor(SimpleSpanProcessor(exporter))
    with observed_by(Spans(tracer.get_tracer("tests"))):
        yield exporter.get_finished_spans


def test_a_hold_is_two_spans_in_the_current_trace(tracer, spans):
    """The wait ends where the hold begins, the hold points to its wait, and both have the request's trace."""
    with (
        tracer.get_tracer("shop").start_as_current_span("request") as request,
        get_lock("order:7", ttl=9, template="order:<id>") as lease,
    ):
        pass
    acquire, hold, outer = spans()
    assert (acquire.name, hold.name, outer.name) == ("acquire order:<id>", "hold order:<id>", "request")
    assert acquire.parent.span_id == hold.parent.span_id == request.get_span_context().span_id
    assert acquire.start_time <= acquire.end_time == hold.start_time <= hold.end_time
    assert [link.context.span_id for link in hold.links] == [acquire.context.span_id]
    assert (
        dict(hold.attributes).items()
        >= {
            "locking.name": "order:7",
            "locking.template": "order:<id>",
            "locking.backend": "default",
            "locking.owner": lease.owner,
            "locking.outcome": "released",
            "locking.ttl": 9.0,
        }.items()
    )
    assert 0 <= hold.attributes["locking.held"] < 9


async def test_a_hold_of_a_task_is_in_its_trace(tracer, spans):
    """The same for asyncio."""
    with tracer.get_tracer("shop").start_as_current_span("request") as request:
        async with get_lock("order:7"):
            pass
    assert [span.name for span in spans()] == ["acquire order:*", "hold order:*", "request"]
    assert spans()[1].parent.span_id == request.get_span_context().span_id


def test_a_refusal_is_one_span(spans, backend_down):
    """Contended is an outcome; an outage is an error."""
    with simulate_contention("a"):
        assert get_lock("a").try_acquire() is None
    with pytest.raises(BackendUnavailable):
        get_lock("a", backend=backend_down).acquire()
    contended, unavailable = (span for span in spans() if span.attributes["locking.outcome"] != "acquired")
    assert contended.attributes["locking.outcome"] == "contended"
    assert contended.status.is_unset
    assert not unavailable.status.is_ok
    assert unavailable.status.description == "the lock backend didn't answer"


def test_a_lost_lease_is_an_error(spans):
    """The span of its hold ends when the loss is found."""
    lease = get_lock("a").acquire()
    simulate_loss(lease)
    with pytest.raises(LockLost):
        lease.release()
    hold = spans()[-1]
    assert hold.name == "hold a"
    assert hold.status.description == "the lease ended before its holder was done"


def test_holds_whose_end_never_comes_do_not_pile_up(tracer, memory_locks, monkeypatch):
    """The oldest goes first."""
    monkeypatch.setattr(opentelemetry, "MOST_OPEN", 2)
    with observed_by(Spans(tracer.get_tracer("tests"))) as observer:
        leases = [get_lock(f"a{number}").acquire() for number in range(3)]
        assert list(observer._holds) == [lease.owner for lease in leases[1:]]


def test_without_an_exporter_nothing_is_kept(memory_locks):
    """OpenTelemetry's default makes spans that record nothing."""
    with observed_by(Spans(get_tracer("tests"))) as observer, get_lock("a"):
        assert not observer._holds

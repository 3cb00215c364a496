"""The webhook of the page on held locks, run unchanged: a real waiter, a real HTTP server."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from locking import get_lock
from locking.inspection.heartbeat import WAITS, HeartbeatPublisher
from tests import ROOT
from tests.support.processes import until

PAGE = (ROOT / "docs/library/how-to/held-locks.md").read_text()


@pytest.fixture
def tell():
    """The page's function."""
    (code,) = re.findall(r"## Report long waits to a webhook\n.*?```python\n(.*?)```", PAGE, re.DOTALL)
    names = {"__name__": "held-locks.md"}
    exec(compile(code, "held-locks.md", "exec"), names)  # noqa: S102 - our own page
    return names["report_long_waits"]


@pytest.fixture
def hook():
    """A server, its address, and the bodies that it was sent."""
    bodies: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["Content-Type"] == "application/json"
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/", bodies
        server.shutdown()


@pytest.mark.django_db(transaction=True)
def test_a_long_wait_is_reported_and_a_short_one_is_not(tell, hook, monkeypatch):
    """Who waits, for how long, for which lock, and where it is wanted."""
    address, bodies = hook
    monkeypatch.setattr("locking.inspection.heartbeat.PUBLISH_AFTER", 0.0)
    reporter = HeartbeatPublisher()
    with get_lock("order:42", ttl=600):
        waiter = threading.Thread(target=lambda: get_lock("order:42", wait=600).acquire().release())
        waiter.name = "worker-7"
        waiter.start()
        until(lambda: WAITS, "a waiter")
        reporter.beat()
        tell(address)
        assert bodies == []
        tell(address, longer_than=0.0)
    waiter.join()
    reporter.deregister()
    (body,) = bodies
    found = re.fullmatch(
        r"\S+:\d+:worker-7 has waited \d+ s for order:42, wanted at \S+:\d+ in .+", body["text"]
    )
    assert found, body

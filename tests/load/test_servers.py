"""The load test's own servers die for real, and are there again."""

import signal

import pytest

from tests.load.delivery import deliver
from tests.load.servers import private_servers
from tests.load.shop import manage, serving
from tests.load.wire import Wire, pack


@pytest.fixture
def own_servers():
    """Both servers in a folder of their own; the handler of SIGTERM that a load run sets is taken back."""
    before = signal.getsignal(signal.SIGTERM)
    with private_servers() as servers:
        yield servers
    signal.signal(signal.SIGTERM, before)


def test_a_crashed_server_is_another_process_with_what_was_acknowledged(own_servers):
    """Every process is killed, open connections with it; what was committed or written is there again."""
    with own_servers.connect() as database, own_servers.redis.client() as client:
        database.execute("CREATE TABLE kept (number int)")
        database.execute("INSERT INTO kept VALUES (7)")
        client.set("kept", 7)
        for server in (own_servers.postgres, own_servers.redis):
            before = server.process().pid
            own_servers.crash(server)
            assert server.process().pid != before
        assert client.get("kept") == b"7"  # the append-only file had reached the kernel
    with own_servers.connect() as database:
        assert database.execute("SELECT number FROM kept").fetchone() == (7,)


def test_a_connection_that_died_in_its_sleep_is_found_out_before_it_is_used(own_servers):
    """PostgreSQL is killed and comes back while the only thread sleeps: its next order is simply placed."""
    environment = own_servers.environment | {"DJANGO_SETTINGS_MODULE": "config.settings"}
    assert manage(environment, "migrate", "--verbosity", "0").returncode == 0
    with own_servers.connect() as database:
        deliver(database, {"mug": 5})
    with serving(environment, workers=1, threads=1) as shop, Wire(shop.address, 20) as wire:
        order = pack(shop.address, "/checkout/", {"lines": [{"sku": "mug", "quantity": 1}]}, {})
        assert wire.ask(order).status == 201
        own_servers.crash(own_servers.postgres)
        assert wire.ask(order).status == 201

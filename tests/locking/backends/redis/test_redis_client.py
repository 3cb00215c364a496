"""Whichever redis-py is installed: it is refused, or a connection of it answers in the same way."""

from typing import Any
from unittest import mock

import pytest
from django.core.exceptions import ImproperlyConfigured
from redis import ConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from locking import get_lock
from locking.backends.redis.protocol import TIME, Terms
from locking.backends.redis.scripts import Index, Ordinary, command
from locking.backends.redis.topology import require_supported_client
from locking.backends.redis.transport import ThreadConnection, ThreadServer, run
from locking.testing.contract.base import begin, until
from tests.backends import any_engine


@pytest.mark.parametrize("version", ["4.6.0", "5.2.0", "5.0.1rc1"])
def test_a_client_that_is_too_old_is_refused(version: str) -> None:
    """The message names what is there and what to install."""
    with pytest.raises(
        ImproperlyConfigured, match=rf"redis-py {version} is installed.*pip install 'redis>=5.2.1'"
    ):
        require_supported_client(version)


@pytest.mark.parametrize("version", ["5.2.1", "6.4.0", "8.1.0", "9.0.0b1"])
def test_other_clients_are_not(version: str) -> None:
    """Newer ones are pip's to refuse."""
    require_supported_client(version)


@pytest.fixture(params=["by its socket", "by redis-py"])
def connection(settings: Any, request: pytest.FixtureRequest) -> Any:
    """An open connection to the real server, whose answers are read in either way."""
    made = ThreadConnection(ConnectionPool.from_url(settings.REDIS_URL))
    run(made.connect())
    if request.param == "by redis-py":
        made._sock = None
    yield made
    made.disconnect()


def test_a_reply_is_received(connection: ThreadConnection) -> None:
    """The server's answer is returned undecoded."""
    connection.send(command("ECHO", "here").by_digest)
    assert connection.receive(5.0) == b"here"


def test_silence_is_a_time_out(connection: ThreadConnection) -> None:
    """Nothing within the time: a TimeoutError, and what comes later is received by the next."""
    with pytest.raises((TimeoutError, RedisTimeoutError)):
        connection.receive(0.01)
    connection.send(command("ECHO", "late").by_digest)
    assert connection.receive(5.0) == b"late"


def test_a_closed_connection_is_not_opened_again(connection: ThreadConnection) -> None:
    """redis-py alone might connect, and wait without the subscription that the old socket had."""
    connection.disconnect()
    with mock.patch.object(connection.connection, "connect") as connect, pytest.raises(RedisConnectionError):
        connection.receive(0.01)
    connect.assert_not_called()


def test_a_subscription_is_given_back_without_is_connected(
    connection: ThreadConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that has waited returns its subscription to the pool on every redis-py."""
    for client in type(connection.connection).__mro__:
        if "is_connected" in vars(client):
            monkeypatch.delattr(client, "is_connected")
    holder = get_lock("waited-for", ttl=60).acquire()
    waiter = begin(get_lock("waited-for", ttl=60, wait=30).acquire)
    until(lambda: any_engine().held(prefix=any_engine().key("waited-for"))[0].waiters, 30)
    holder.release()
    waiter.result(30).release()


def test_a_release_lets_the_waiter_be_answered_first(settings: Any) -> None:
    """Where this process waits for locks: Redis writes last to the client that has an answer already."""
    server: Any = ThreadServer(Terms("default", Index()), ConnectionPool.from_url(settings.REDIS_URL))
    connection, sent = server.make(), list[bytes]()
    exchange = connection.exchange

    async def exchanged(packet: bytes, replies: int | None) -> Any:
        sent.append(packet)
        return await exchange(packet, replies)

    connection.exchange, server.make = exchanged, lambda: connection
    release = Ordinary(Index()).release("lock:free", "none:1")
    for server.has_waiters in (False, True):
        assert run(server.deliver(release)) == 0
    assert [packet.startswith(TIME) for packet in sent if packet.endswith(release.by_digest)] == [False, True]
    run(server.shutdown())


@pytest.mark.parametrize("way", ["deliver", "pipeline"])
def test_a_connection_in_use_while_its_backend_is_closed_is_closed_after_its_request(
    settings: Any, way: str
) -> None:
    """It would never be closed: the garbage collector warns of an unclosed socket."""
    server: Any = ThreadServer(Terms("default", Index()), ConnectionPool.from_url(settings.REDIS_URL))
    request, connection = command("ECHO", "here"), server.make()
    exchange = connection.exchange

    async def exchanged(packet: bytes, replies: int | None) -> Any:
        reply = await exchange(packet, replies)
        await server.shutdown()
        return reply

    connection.exchange, server.make = exchanged, lambda: connection
    reply: Any = run(server.pipeline([request]) if way == "pipeline" else server.deliver(request))
    assert reply == ([b"here"] if way == "pipeline" else b"here")
    assert not connection.is_open

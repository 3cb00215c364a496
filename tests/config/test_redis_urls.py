"""Redis addresses in each library's words."""

import ssl
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from kombu import Connection
from kombu.transport.redis import Channel
from redis.connection import parse_url

from config.redis_urls import as_broker, as_rate_storage, with_database
from orders.http import rate_limit


@pytest.mark.parametrize(
    "url",
    [
        "redis://ada:p%40ss@cache.example:6380",
        "rediss://:p%40ss@cache.example",
        "rediss://cache.example?username=ada&password=p%40ss&ssl_ca_certs=/ca.pem",
        "rediss://10.0.0.1?ssl_check_hostname=false",
        "rediss://10.0.0.1?ssl_check_hostname=true&ssl_include_verify_flags=VERIFY_X509_STRICT",
        "rediss://10.0.0.1?ssl_exclude_verify_flags=[VERIFY_X509_STRICT,VERIFY_X509_PARTIAL_CHAIN]",
    ],
)
def test_the_rate_of_a_cluster_is_counted_where_redis_py_connects(url, monkeypatch):
    """Host, login and TLS are the same, wherever the address has them."""
    opened: dict[str, Any] = {}
    monkeypatch.setattr("redis.cluster.RedisCluster", lambda **options: opened.update(options) or MagicMock())
    rate_limit._limiter.__wrapped__(as_rate_storage(url, cluster=True))
    wanted, (node,) = parse_url(url), opened["startup_nodes"]
    assert (node.host, node.port) == (wanted["host"], wanted.get("port", 6379))
    flags = ("ssl_include_verify_flags", "ssl_exclude_verify_flags")
    for name in ("username", "password", "ssl_ca_certs", "ssl_check_hostname", *flags):
        assert opened.get(name) == wanted.get(name)
    assert opened["ssl"] is url.startswith("rediss")


@pytest.mark.parametrize(
    "url",
    ["redis://:secret@cache.example:6380/2", "rediss://cache.example", "unix:///run/a%20b/redis.sock?db=1"],
)
def test_with_database_changes_the_database_alone(url):
    """redis-py reads another database and otherwise the same connection."""
    assert parse_url(with_database(url, 7)) == parse_url(url) | {"db": 7}


def test_as_broker_leaves_other_addresses_alone():
    """What Celery reads as it is stays as it is."""
    assert as_broker("redis://cache.example:6379/1") == "redis://cache.example:6379/1"


def celery_reads(url):
    """What Celery's library hands to its connections, without opening one."""
    channel: Any = Channel.__new__(Channel)
    channel.connection = SimpleNamespace(client=Connection(url), default_port=6379)
    return channel._connparams()


@pytest.mark.parametrize(
    "url",
    [
        "redis://:p%40ss@cache.example:6380/2",
        "redis://cache.example:6380?db=4",
        "redis://cache.example:6380/2?db=4&socket_timeout=5&health_check_interval=30",
        "redis://cache.example:6380?username=ada&password=p%40ss",
        "rediss://ada:p%40ss@cache.example:6380/1?ssl_ca_certs=/etc/ca.pem",
        "unix:///run/a%20b/redis.sock?db=1",
        "unix://:p%40ss@/run/redis.sock?db=1",
        "unix:///run/redis.sock?password=p%40ss&socket_timeout=5",
    ],
)
def test_the_broker_is_what_redis_py_reads(url):
    """Server, login and database are the same, wherever the address has them; other options stay out."""
    wanted, found = {"db": 0} | parse_url(url), celery_reads(as_broker(url))
    names = ("host", "port", "path", "username", "password", "db")
    assert {name: found.get(name) for name in names} == {name: wanted.get(name) for name in names}
    assert found["socket_timeout"] is None


def test_the_certificate_of_a_broker_is_verified():
    """As redis-py does unless the address says otherwise; Celery's library trusts any certificate."""
    address = "rediss://cache.example:6380/1"
    assert celery_reads(as_broker(address))["ssl_cert_reqs"] == ssl.CERT_REQUIRED
    assert celery_reads(as_broker(f"{address}?ssl_cert_reqs=none"))["ssl_cert_reqs"] == ssl.CERT_NONE


def test_the_broker_address_works(redis_database):
    """A message sent through Celery's library arrives in the embedded server's database."""
    from django.conf import settings

    with Connection(as_broker(settings.REDIS_URL)) as connection:
        queue = connection.SimpleQueue("greetings")
        queue.put({"hello": "there"})
        assert redis_database.llen("greetings") == 1
        assert queue.get(timeout=30).payload == {"hello": "there"}
        queue.close()

"""Redis addresses in each library's words."""

import pytest
from kombu import Connection
from redis.connection import parse_url

from config.redis_urls import as_broker, with_database


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


def test_the_broker_address_works(redis_database):
    """A message sent through Celery's library arrives in the embedded server's database."""
    from django.conf import settings

    with Connection(as_broker(settings.REDIS_URL)) as connection:
        queue = connection.SimpleQueue("greetings")
        queue.put({"hello": "there"})
        assert redis_database.llen("greetings") == 1
        assert queue.get(timeout=30).payload == {"hello": "there"}
        queue.close()

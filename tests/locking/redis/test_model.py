"""The model of the server that the fault explorer uses answers as Redis does."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ResponseError

from locking.backends.redis.index import Index
from locking.backends.redis.kinds import Ordinary, kind_named
from locking.backends.redis.scripts import acquire_request, place_in_queue, release_request
from tests.locking.redis.explorer import parsed
from tests.locking.redis.model import Clock, ModelServer

ONE, TWO, JAVA = (
    f"00000000-0000-{version}000-8000-00000000000{i}:1" for i, version in ((1, 8), (2, 8), (3, 4))
)
INDEX = Index("")


def conversation() -> list[Any]:
    """Requests that go through every script of the verbs, in an order that makes each branch answer."""
    place = place_in_queue(TWO, 30, keep=False, channel="nobody-listens")
    steps: list[Any] = [
        acquire_request("a", ONE, 30, keep=False, place=b"", index=INDEX),
        acquire_request("a", TWO, 30, keep=False, place=place, index=INDEX),
        acquire_request("a", ONE, 20, keep=True, place=b"", index=INDEX),
        release_request("a", TWO, index=INDEX, place=place),
        release_request("a", ONE, index=INDEX),
        release_request("a", ONE, index=INDEX),
    ]
    for name, key in (("lock", "b"), ("read", "c"), ("write", "d"), ("semaphore", "e"), ("fair", "f")):
        kind = Ordinary(INDEX) if name == "lock" else kind_named(name, INDEX, permits=1)
        for owner in (ONE, TWO, JAVA):
            steps.append(kind.acquire(key, owner, 30, keep=False, queue=True))
        steps += [kind.extend(key, ONE, 40), kind.extend(key, ONE, 5), kind.extend(key, JAVA, 5)]
        steps += [kind.release(key, owner) for owner in (ONE, TWO, JAVA, ONE)]
        steps.append(kind.acquire(key, TWO, 30, keep=False, queue=False))
    return steps


def shape(reply: Any) -> Any:
    """The reply without what depends on the clock."""
    if isinstance(reply, list):
        return [shape(each) for each in reply]
    if isinstance(reply, int) and not isinstance(reply, bool) and reply > 1000:
        return "time"
    return reply


def test_the_model_answers_as_the_server_does(own_redis):
    """Every script of the verbs gives the same answers on the model as on a real server."""
    model = ModelServer(Clock())
    for request in conversation():
        parts = parsed(request.by_source)[0]
        assert shape(model.execute(*parts)) == shape(own_redis.client.execute_command(*parts)), parts[2:]


def test_the_model_refuses_the_wrong_type():
    """A key of another type is refused in Redis' words."""
    model = ModelServer(Clock())
    model.execute(b"SET", b"a", b"x")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        model.execute(b"HEXISTS", b"a", b"f")

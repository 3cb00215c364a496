"""The model of the server that the fault explorer uses answers as Redis does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import ResponseError

from locking.backends.redis.scripts import (
    NAMED,
    Index,
    Ordinary,
    command,
    extend_request,
    place_in_queue,
)
from tests.locking.backends.redis.explorer import parsed
from tests.locking.backends.redis.model import Clock, ModelServer

ONE, TWO, JAVA = (
    f"00000000-0000-{version}000-8000-00000000000{i}:1" for i, version in ((1, 8), (2, 8), (3, 4))
)
INDEX = Index("")
ORDINARY = Ordinary(INDEX)
AHEAD = 8_000_000_000_000_000
"""A token ahead of any clock: those minted after it are known exactly."""


KINDS = (("lock", "b"), ("read", "c"), ("write", "d"), ("semaphore", "e"), ("fair", "f"))


def conversation() -> list[Any]:
    """Requests that go through every script of the verbs, in an order that makes each branch answer."""
    place = place_in_queue(TWO, 30, keep=False, channel="no-subscriber")
    steps: list[Any] = [
        ORDINARY.acquire("a", ONE, 30, keep=False),
        ORDINARY.acquire("a", TWO, 30, keep=False, entry=place),
        ORDINARY.acquire("a", ONE, 20, keep=True),
        ORDINARY.extend("a", ONE, 10, exactly=True),
        ORDINARY.release("a", TWO, entry=place),
        ORDINARY.release("a", ONE),
        ORDINARY.release("a", ONE),
    ]
    for name, key in KINDS:
        kind = kind_of(name)
        for owner in (ONE, TWO, JAVA):
            steps.append(kind.acquire(key, owner, 30, keep=False, queue=True))
        steps += [kind.extend(key, ONE, 40), kind.extend(key, ONE, 5), kind.extend(key, JAVA, 5)]
        steps += [kind.release(key, owner) for owner in (ONE, TWO, JAVA, ONE)]
        steps.append(kind.acquire(key, TWO, 30, keep=False, queue=False))
    return steps + tokens() + keys_of_another_use()


def kind_of(name: str) -> Any:
    """Return a kind by its name."""
    return NAMED[name](INDEX)


def tokens() -> list[Any]:
    """A counter that is kept, one that is only raised, and a last token that is ahead of the clock."""
    steps: list[Any] = [command("SET", "redisson_lock_token:{h}", 7)]
    for key, keep in (("g", True), ("g", False), ("h", False), ("i", False)):
        steps += [ORDINARY.acquire(key, ONE, 30, keep=keep)]
        steps += [command("GET", f"redisson_lock_token:{{{key}}}"), ORDINARY.release(key, ONE)]
    steps.append(command("ZADD", INDEX.of(b"g"), AHEAD, "~"))
    for name, key in KINDS:
        steps.append(kind_of(name).acquire(f"ahead-{key}", ONE, 30, keep=key in "bc", queue=False))
        steps.append(command("GET", f"redisson_lock_token:{{ahead-{key}}}"))
    return steps


def keys_of_another_use() -> list[Any]:
    """Every request of every kind on a key that holds something else."""
    steps: list[Any] = []
    for other in (command("SET", "j", "text"), command("RPUSH", "j", "x"), command("HSET", "j", "f", "v")):
        steps += [command("DEL", "j"), other]
        for name, _ in KINDS:
            kind = kind_of(name)
            steps += [kind.acquire("j", ONE, 30, keep=False, queue=False), kind.extend("j", ONE, 30)]
            steps += [kind.release("j", ONE)]
        steps.append(extend_request([("j", ONE, 30), ("ahead-b", ONE, 30)]))
    return steps


OPTIONS = """
SET s 1 XX | SET s 1 NX | SET s 2 NX | SET s 2 GET | SET s 3 XX KEEPTTL GET | SET s 4 XX GET | GET s
SET s 5 PX 60000 | SET s 6 KEEPTTL | PTTL none | SET none 1 XX GET | EXISTS s none s | TYPE s | TYPE none
ZADD z 5 a 5 b | ZADD z GT CH 6 a 4 b | ZADD z GT CH 6 a 7 b | ZADD z GT 1 c | ZADD z NX 9 a
ZADD z CH 9 a 9 d | ZADD z 1700000000000000.5 a
ZSCORE z a | ZSCORE z none | ZSCORE s a | TYPE z | ZRANGE z 0 -1 WITHSCORES | ZCARD z
RPUSH l a | RPUSH l b | RPUSH l a | RPUSH l a | LREM l 1 a | LRANGE l 0 -1 | LREM l 0 a
LRANGE l 0 -1 | TYPE l
HSET h f 1 g 2 | HSET h f 3 i 4 | HGETALL h | HLEN h | TYPE h | GET h | HGET s f | SET h 1 GET | LPOP h
"""
"""Commands whose options and errors the scripts rely on."""


def shape(reply: Any) -> Any:
    """The reply without what depends on the clock."""
    if isinstance(reply, list):
        return [shape(each) for each in reply]
    if isinstance(reply, int) and not isinstance(reply, bool) and 1000 < abs(reply) < AHEAD:
        return "time" if reply > 0 else "-time"
    if isinstance(reply, bytes) and reply.replace(b".", b"").isdigit() and 1000 < float(reply) < AHEAD:
        return "time"
    return reply


def answer(execute: Callable[..., Any], parts: list[bytes]) -> Any:
    """What is answered, an error as its text."""
    try:
        return shape(execute(*parts))
    except ResponseError as error:
        return f"error: {error}"


@pytest.fixture
def real(own_redis):
    """Call it with a command's parts for a real server's reply, as it was sent."""
    pool = own_redis.client.connection_pool
    connection = pool.connection_class(**{**pool.connection_kwargs, "protocol": 2})

    def real(*parts):
        connection.send_command(*parts)
        return connection.read_response(disable_decoding=True)

    yield real
    connection.disconnect()


def test_the_model_answers_as_the_server_does(real):
    """Every script of the verbs gives the same answers on the model as on a real server, and errors."""
    model = ModelServer(Clock())
    for request in conversation():
        parts = parsed(request.by_source)[0]
        assert answer(model.execute, parts) == answer(real, parts), parts[2:]


def test_the_model_knows_the_options_of_commands(real):
    """The options and errors of commands that the scripts use give the same answers."""
    model = ModelServer(Clock())
    for line in OPTIONS.replace("\n", "|").split("|"):
        if parts := line.encode().split():
            assert answer(model.execute, parts) == answer(real, parts), line


def test_a_defect_of_the_model_is_no_error_of_the_server():
    """A command that the model lacks fails the test, although the script catches errors."""
    with pytest.raises(AttributeError, match="do_lacking"):
        ModelServer(Clock()).execute(b"EVAL", b"return pcall(redis.call, 'LACKING')", b"0")


def test_the_model_refuses_the_wrong_type():
    """A key of another type is refused in Redis' words."""
    model = ModelServer(Clock())
    model.execute(b"SET", b"a", b"x")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        model.execute(b"HEXISTS", b"a", b"f")

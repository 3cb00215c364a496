"""Fencing tokens without a counter per name: they rise whatever the clock does, and leave no key behind."""

from functools import partial

import pytest

from locking import get_lock, get_read_lock, get_write_lock
from locking.backends.base import Grant
from locking.backends.redis import scripts
from locking.backends.redis.scripts import Index, Ordinary
from locking.contrib.redisson import get_fair_lock
from locking.core.handler import locks
from locking.utils.ownership import new_owner
from tests.backends import any_engine
from tests.locking.support.helpers import parts_of

INDEX = "holdfast_held:"
KEYS = ["a", "redisson_lock_token:{a}", "holdfast_lock_queue:{a}", INDEX]
FROZEN_CLOCK = """
local server = redis
local redis = {pcall = server.pcall, error_reply = server.error_reply, call = function(verb, ...)
    if verb == 'TIME' then return {'1700000000', ARGV[#ARGV]} end
    return server.call(verb, ...)
end}
"""


@pytest.fixture
def server(own_redis, locks_on):
    """The server's plain client; locks are on it."""
    locks_on(own_redis.url)
    return own_redis.client


def granted_at(server, micros, *, fenced=False, name="a", rule=b"", instead=b""):
    """Acquire and release `name` on a server whose clock shows `micros` and return the token.

    `instead` takes the place of `rule` in the script: a mutant.
    """
    source = b"\n".join(scripts._read(part) for part in scripts.ACQUIRE.names)
    assert rule in source, "the rule isn't written like this any more"
    keys = [name if key == "a" else key.replace("{a}", f"{{{name}}}") for key in KEYS]
    arguments = [new_owner(), 60_000, int(fenced), "", micros]
    token = server.eval(FROZEN_CLOCK.encode() + source.replace(rule, instead), 4, *keys, *arguments)
    assert locks["default"].release(name, arguments[0])
    return token


def test_an_unfenced_lock_leaves_no_key_behind(server):
    """After a hundred names there is one key, the alias's index, which holds the last token alone."""
    for number in range(20):
        for get in (get_lock, get_read_lock, get_write_lock, get_fair_lock):
            with get(f"{get.__name__}:{number}", ttl=5):
                pass
    assert server.keys() == [INDEX.encode()]
    assert server.zrange(INDEX, 0, -1) == [b"~"]


def test_an_unfenced_pair_takes_nine_commands(server):
    """The scripts' commands are most of a lock's cost: this counts them."""
    with get_lock("warm-up", ttl=5):
        pass
    server.config_resetstat()
    with get_lock("a", ttl=5):
        pass
    stats = server.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()}
    own = {name: number for name, number in calls.items() if name not in ("config|resetstat", "info")}
    assert own.pop("evalsha") == 2
    assert sum(own.values()) == 9, own


@pytest.mark.parametrize("kind", ["lock", "fair", "write"])
@pytest.mark.parametrize("fenced", [False, True])
def test_a_repeated_acquisition_has_the_same_token(server, kind, fenced):
    """The token is in the index: the owner that asks again gets the same one."""
    backend = any_engine() if kind == "lock" else any_engine().variant(kind)
    owner = new_owner()
    first, second = (backend.try_acquire("a", owner, 60.0, fenced=fenced) for _ in range(2))
    (hold,) = any_engine().held()
    assert isinstance(first, Grant)
    assert isinstance(second, Grant)
    assert hold.token == first.token == second.token


BY_THE_CLOCK_ALONE = (b"== 2 then return", b"> -1 then return")


@pytest.mark.parametrize("fenced", [(False, False), (False, True), (True, False), (True, True)])
def test_two_grants_of_one_microsecond_have_two_tokens(server, fenced):
    """The clock is stopped: the second token is one more than the first, fenced or not."""
    first, second = (granted_at(server, 500, fenced=each) for each in fenced)
    assert second == first + 1


@pytest.mark.parametrize("fenced", [(False, False), (False, True), (True, False), (True, True)])
def test_tokens_rise_when_the_clock_steps_back(server, fenced):
    """A grant after the clock went back has the higher token, though no counter of the name was kept."""
    first, second = granted_at(server, 900, fenced=fenced[0]), granted_at(server, 100, fenced=fenced[1])
    assert second > first


@pytest.mark.parametrize("micros", [900, 100])
def test_without_the_last_token_of_all_names_tokens_would_repeat(server, micros):
    """The mutant of the two tests above: by the clock alone the second token isn't higher."""
    rule, instead = BY_THE_CLOCK_ALONE
    take = partial(granted_at, server, rule=rule, instead=instead)
    assert take(900) >= take(micros)


@pytest.mark.parametrize("fenced", [False, True])
def test_without_all_of_its_digits_a_token_would_not_rise(server, fenced):
    """Lua writes fourteen digits of a number by default, and a token has sixteen."""
    take = partial(granted_at, server, 500, fenced=fenced)
    assert [take() - take() for _ in range(2)] == [-1, -1]
    take = partial(take, rule=b"string.format('%.0f', token)", instead=b"tostring(token)")
    assert take() >= take()


def test_a_counter_that_a_database_checks_rises_with_unfenced_grants(server):
    """With a stopped clock and a lost index the counter alone makes tokens rise, unfenced ones too."""
    tokens = []
    for fenced in (True, False, True, False):
        tokens.append(granted_at(server, 500, fenced=fenced))
        server.delete(INDEX)
    assert tokens == [tokens[0] + number for number in range(4)]
    assert server.ttl("redisson_lock_token:{a}") == -1


def test_a_java_counter_ahead_of_the_clock_is_counted_on(server):
    """A counter that Redisson raised is exceeded by an unfenced grant, too, and written."""
    server.set("redisson_lock_token:{a}", 9_007_199_254_740_000)
    assert granted_at(server, 500) == 9_007_199_254_740_001
    assert server.get("redisson_lock_token:{a}") == b"9007199254740001"


def test_a_token_agreed_on_is_remembered_without_a_counter(server):
    """Redlock raises the token of an unfenced hold: the next grant is above it, and no counter is made."""
    owner, ahead = new_owner(), 9_007_199_254_740_000
    locks["default"].try_acquire("a", owner, 60.0)
    raised = Ordinary(Index()).raise_token("a", owner, ahead, keep=False)
    assert server.execute_command(*parts_of(raised)) == 1
    assert [hold.token for hold in any_engine().held()] == [ahead]
    locks["default"].release("a", owner)
    grant = locks["default"].try_acquire("a", new_owner(), 60.0)
    assert isinstance(grant, Grant)
    assert grant.token == ahead + 1
    assert not server.exists("redisson_lock_token:{a}")

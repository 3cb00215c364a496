"""The `LOCKING` setting and the backends that come of it."""

import threading

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test.utils import override_settings

from locking import LockKeyError, get_lock
from locking.backends.memory import MemoryBackend
from locking.backends.redis import RedisBackend
from locking.checks import check_setting
from locking.conf import read_alias
from locking.core.handler import InvalidLockBackend, LockHandler, locks
from locking.testing.contract.base import begin, elsewhere
from locking.testing.contract.processes import child
from tests.backends import MEMORY, REDIS, any_engine


def test_without_the_setting_locks_are_on_the_default_cache():
    """An app works as soon as it is added to INSTALLED_APPS."""
    with override_settings(LOCKING={}):
        assert isinstance(locks["default"], RedisBackend)
        assert locks["default"].settings.cache == "default"
        with get_lock("a", ttl=5):
            pass


def test_an_unknown_alias_is_reported_with_the_known_ones():
    """The message lists what there is."""
    with pytest.raises(InvalidLockBackend, match="no alias 'fast'; it has database, default"):
        get_lock("a", backend="fast")


def test_backends_are_shared_by_threads_and_built_once():
    """One instance an alias and process."""
    assert elsewhere(lambda: locks["default"]) is locks["default"]


def test_a_changed_setting_is_honoured():
    """`override_settings` and `setting_changed` reach backends that are in use."""
    before = locks["default"]
    with override_settings(LOCKING={"default": {"BACKEND": MEMORY, "TTL": 7, "WAIT": None}}):
        assert isinstance(any_engine(), MemoryBackend)
        with get_lock("a") as lease:
            assert lease.ttl == 7
    assert isinstance(any_engine(), RedisBackend)
    assert locks["default"] is not before


@pytest.mark.parametrize("step", ["configure_settings", "create_connection"])
def test_a_thread_that_saw_the_former_setting_leaves_nothing_behind(monkeypatch, step):
    """What a background thread, such as the heartbeat's, builds while the setting changes is of no use."""
    read, go_on = threading.Event(), threading.Event()
    original = getattr(locks, step)

    def slowly(*arguments):
        result = original(*arguments)
        if threading.current_thread() is not threading.main_thread():
            read.set()
            assert go_on.wait(20)
        return result

    locks.reset()
    monkeypatch.setattr(locks, step, slowly)
    background = begin(lambda: locks["default"])
    assert read.wait(20)
    with override_settings(LOCKING={"default": {"BACKEND": MEMORY}}):
        go_on.set()
        background.result(20)
        assert isinstance(any_engine(), MemoryBackend)


def test_the_watchdog_keeps_leases_of_the_length_that_its_alias_says():
    """`WATCHDOG_TTL` is the length of a renewed lease only: a ttl given is neither renewed nor changed."""
    with override_settings(LOCKING={"default": {"BACKEND": MEMORY, "WATCHDOG_TTL": 4}}):
        with get_lock("a") as lease:
            assert (lease.ttl, lease.leases[0].renewed) == (4, True)
        with get_lock("a", ttl=9) as lease:
            assert (lease.ttl, lease.leases[0].renewed) == (9, False)


def test_a_forked_child_builds_its_own_backends():
    """Sockets are never shared between processes."""
    before = id(locks["default"])
    kept = locks["default"]

    def work(pipe):
        pipe.send(locks["default"] is kept)

    with child(work) as forked:
        assert forked.report() is False
    assert id(locks["default"]) == before


def test_all_aliases_or_those_in_use():
    """`all` builds what is configured; with `initialized_only` it builds nothing."""
    with override_settings(LOCKING={"default": {"BACKEND": MEMORY}, "other": {"BACKEND": MEMORY}}):
        assert locks.all(initialized_only=True) == []
        assert [backend.alias for backend in locks.all()] == ["default", "other"]
        assert len(locks.all(initialized_only=True)) == 2


def test_two_aliases_are_two_worlds():
    """The same name on two aliases is two locks."""
    entry = {"BACKEND": MEMORY}
    with (
        override_settings(LOCKING={"default": entry, "other": entry}),
        get_lock("a", ttl=5),
        get_lock("a", ttl=5, backend="other") as lease,
    ):
        assert lease.leases[0].depth == 1
        assert elsewhere(get_lock("a", backend="other").try_acquire) is None


def test_a_handler_may_be_given_its_settings():
    """And keeps what is put in by hand."""
    handler = LockHandler({"default": {"BACKEND": MEMORY}})
    made = handler["default"]
    handler["default"] = made
    del handler["default"]
    assert handler["default"] is not made


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"TIMEOUT": 3}, r"LOCKING\['x'\] has the unknown key 'TIMEOUT'; did you mean 'FENCE_TIMEOUT'"),
        ({"TTL": 0}, r"LOCKING\['x'\]: TTL must be between 0.001 and 604800 seconds, not 0"),
        ({"TTL": "30"}, r"TTL must be a number of seconds or a timedelta, not '30' \(str\)"),
        ({"WATCHDOG_TTL": 0}, r"WATCHDOG_TTL must be between 0.001 and 604800 seconds, not 0"),
        ({"WAIT": -1}, r"WAIT must be 0"),
        ({"OPTIONS": ["a"]}, r"\['OPTIONS'\] must be a dict, not \['a'\]"),
        ("redis://", r"LOCKING\['x'\] must be a dict, not 'redis://'"),
    ],
)
def test_mistakes_in_the_setting_are_reported(entry, message):
    """ImproperlyConfigured names the alias, the key and the value."""
    with pytest.raises(ImproperlyConfigured, match=message):
        read_alias("x", entry)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"CACHE": "default", "LOCATION": "redis://x"}, "both CACHE and LOCATION; keep one"),
        ({"LOCATION": "http://x"}, "LOCATION"),
        ({"CACHE": "local"}, "shares the cache 'local', which is .*LocMemCache and not on Redis"),
    ],
)
def test_mistakes_in_a_redis_alias_are_reported(entry, message, settings):
    """What can't be a Redis server is refused when the backend is built, before any I/O."""
    settings.CACHES = {
        **settings.CACHES,
        "local": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    }
    settings.LOCKING = {"default": {"BACKEND": REDIS, **entry}}
    with pytest.raises(ImproperlyConfigured, match=message):
        get_lock("a")


def test_names_are_checked_before_the_backend_is_built():
    """A bad name is reported first, even where the setting is wrong, too."""
    with override_settings(LOCKING={"default": {"BACKEND": "no.such.Backend"}}):
        with pytest.raises(LockKeyError):
            get_lock("")
        with pytest.raises(ImproperlyConfigured, match="No module named"):
            get_lock("a")


def test_djangos_own_redis_cache_can_be_shared(settings):
    """Not only django-redis: the cache backend of Django itself has a connection to share."""
    settings.CACHES = {
        **settings.CACHES,
        "own": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": settings.REDIS_URL},
    }
    settings.LOCKING = {"default": {"BACKEND": REDIS, "CACHE": "own"}}
    with get_lock("a", ttl=5):
        assert get_lock("a").locked()


def test_a_cache_of_several_servers_is_refused_with_the_cure(settings):
    """django-redis' ShardClient has no one client: its keys are on several servers."""
    address = "redis://127.0.0.1:1/0"
    settings.CACHES = {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": [address, address],
            "OPTIONS": {"CLIENT_CLASS": "django_redis.client.ShardClient"},
        }
    }
    settings.LOCKING = {"default": {"CACHE": "default"}}
    with pytest.raises(ImproperlyConfigured, match=r"ShardClient.*LOCATION of its own"):
        locks["default"]
    assert [message.id for message in check_setting()] == ["locking.E004"]

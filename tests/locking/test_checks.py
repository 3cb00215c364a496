"""The system checks: each trap is reported under its own id, and a sound project gets no message."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any
from weakref import WeakSet

import pytest
import redis
from django.contrib import admin
from django.contrib.auth.models import Group
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View

from locking import checks, distributed_lock
from locking.backends.memory import MemoryBackend
from locking.backends.redis.diagnosis import judge, parse_info
from locking.transactions.decorator import DECORATED

REDIS = "locking.backends.redis.RedisBackend"
MEMORY = "locking.backends.memory.MemoryBackend"


@pytest.fixture(autouse=True)
def one_alias(settings: Any) -> None:
    """Leave the alias on the database to the tests that may ask it."""
    settings.LOCKING = {"default": settings.LOCKING["default"]}


@pytest.fixture(autouse=True)
def no_decorated_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what test modules have decorated on purpose with names that don't exist."""
    monkeypatch.setattr(checks, "DECORATED", WeakSet())


def found(*tags: str) -> list[str]:
    """The ids that the checks report."""
    return [str(message.id) for message in run_checks(tags=list(tags or ("locking",)))]


def test_a_sound_project_hears_nothing() -> None:
    """The demo's own settings pass."""
    assert found("locking") == []


# --- the setting ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("locking", "ids"),
    [
        (["default"], ["locking.E001"]),
        ({"default": "redis"}, ["locking.E001"]),
        ({"default": {"TLL": 5}}, ["locking.E001"]),
        ({"default": {"WAIT": -1}}, ["locking.E001"]),
        ({"default": {"ON_CONFLICT": "rais"}}, ["locking.E001"]),
        ({"other": {"CACHE": "default"}}, ["locking.E002"]),
        ({"default": {"TTL": 0}}, ["locking.E003"]),
        ({"default": {"TTL": -5}}, ["locking.E003"]),
        ({"default": {"TTL": "10"}}, ["locking.E003"]),
        ({"default": {"WATCHDOG_TTL": 0}}, ["locking.E003"]),
        ({"default": {"BACKEND": "nowhere.Backend"}}, ["locking.E004"]),
        ({"default": {"CACHE": "nowhere"}}, ["locking.E004"]),
        ({"default": {"BACKEND": REDIS, "LOCATION": "http://redis"}}, ["locking.E004"]),
        ({"default": {"CACHE": "default"}, "b": {"TTL": 0}, "a": {"TTL": 0}}, ["locking.E003"] * 2),
    ],
)
def test_a_wrong_setting_is_reported(settings: Any, locking: Any, ids: list[str]) -> None:
    """Each mistake in `LOCKING` has its id, and one alias's mistake doesn't hide another's."""
    settings.LOCKING = locking
    assert found() == ids


def test_a_cache_that_is_not_redis_is_reported(settings: Any) -> None:
    """Locks in a local-memory cache would hold within one process only."""
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    assert found() == ["locking.E004"]


@pytest.mark.parametrize(("debug", "ids"), [(True, []), (False, ["locking.W001"])])
def test_a_backend_of_one_process_is_for_debug(
    settings: Any, monkeypatch: pytest.MonkeyPatch, debug: bool, ids: list[str]
) -> None:
    """The memory backend is fine on a developer's machine and a trap in production."""
    monkeypatch.setattr(checks, "_under_test", lambda: False)
    settings.DEBUG = debug
    settings.LOCKING = {"default": {"BACKEND": MEMORY}}
    assert found() == ids


def test_a_backend_of_one_process_is_fine_under_tests(settings: Any) -> None:
    """Tests run without DEBUG, and locks in memory are what they should have."""
    settings.DEBUG = False
    settings.LOCKING = {"default": {"BACKEND": MEMORY}}
    assert found() == []


# --- decorators -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"backend": "nowhere"}, ["locking.E002"]),
        ({"using": "nowhere"}, ["locking.E005"]),
        ({"using": ["default", "nowhere", "nirgends"]}, ["locking.E005"] * 2),
        ({}, []),
    ],
)
def test_a_decorator_that_names_what_is_not_there_is_reported(options: Any, ids: list[str]) -> None:
    """An alias that doesn't exist is reported before the first call."""

    @distributed_lock(key="'a'", **options)
    def function() -> None: ...

    assert function in DECORATED
    mine = checks._check_decorated(function)
    assert [message.id for message in mine] == ids


class NoTokens(MemoryBackend):
    """A backend without fencing tokens."""

    supports_fencing = False


def test_a_fence_that_no_client_can_check_is_reported(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend without tokens, and a database without a fence, are reported before the first call."""
    settings.LOCKING = {
        "default": {"CACHE": "default"},
        "bare": {"BACKEND": f"{__name__}.NoTokens"},
        "broken": {"BACKEND": "nowhere.Backend"},
    }

    @distributed_lock(key="'a'", fenced=True)
    def sound() -> None: ...

    @distributed_lock(key="'a'", fenced=True, backend="bare")
    def bare() -> None: ...

    @distributed_lock(key="'a'", fenced=True, backend="broken")
    def broken() -> None: ...

    assert [list(checks._check_decorated(function)) for function in (sound, broken)] == [[], []]
    assert [message.id for message in checks._check_decorated(bare)] == ["locking.E008"]
    monkeypatch.setattr(connections["default"], "vendor", "oracle")
    (message,) = checks._check_decorated(sound)
    assert "the database 'default' can't check a token" in message.msg


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({}, []),
        ({"isolation_level": "read committed"}, []),
        ({"isolation_level": "Repeatable-Read"}, ["locking.W003"]),
        ({"isolation_level": None}, ["locking.W003"]),
    ],
)
def test_a_fence_at_mysqls_repeatable_read_is_reported(
    options: dict[str, Any], ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most servers write over what a snapshot doesn't show at that level, so the call would be refused."""

    @distributed_lock(key="'a'", fenced=True)
    def fenced() -> None: ...

    monkeypatch.setattr(connections["default"], "vendor", "mysql")
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", options)
    assert [message.id for message in checks._check_decorated(fenced)] == ids


@pytest.mark.parametrize(
    ("vendor", "debug", "ids"),
    [("sqlite", False, ["locking.W002"]), ("sqlite", True, []), ("postgresql", False, [])],
)
def test_row_locks_that_do_nothing_are_reported(
    vendor: str, debug: bool, ids: list[str], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite takes select_for_update() without a word and locks nothing."""

    @distributed_lock(key="'a'")
    def locked() -> None: ...

    settings.DEBUG = debug
    monkeypatch.setattr(checks, "_decorated", lambda: [locked])
    monkeypatch.setattr(connections["default"], "vendor", vendor)
    assert [message.id for message in checks.check_row_locks()] == ids


# --- ATOMIC_REQUESTS --------------------------------------------------------------------------------------


class OnMethod(View):
    @method_decorator(distributed_lock(key="'a'"))
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


@method_decorator(distributed_lock(key="'a'"), name="dispatch")
class OnDispatch(View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


@distributed_lock(key="'a'")
def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@distributed_lock(key="'a'", using="second")
def elsewhere(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


SOUND = [path("plain/", plain), path("dispatch/", OnDispatch.as_view())]
TRAPS = [path("method/", OnMethod.as_view()), path("elsewhere/", elsewhere)]
urlpatterns = [path("nested/", include(SOUND + TRAPS))]


@pytest.mark.urls(__name__)
@pytest.mark.django_db(transaction=True)
def test_views_that_atomic_requests_would_wrap_are_reported(atomic_requests: None) -> None:
    """`check` reports a lock on a method, and one for another database: each request refuses them."""
    messages = checks.check_atomic_requests()
    assert [message.id for message in messages] == ["locking.E006", "locking.E007"]
    assert "OnMethod.post" in messages[0].msg
    assert "elsewhere" in messages[1].msg


@pytest.mark.urls(__name__)
def test_without_atomic_requests_there_is_no_trap() -> None:
    """The same views are fine where Django doesn't wrap them."""
    assert checks.check_atomic_requests() == []


# --- the admin, and keys of routes ------------------------------------------------------------------------


site = admin.AdminSite("checked")


@admin.register(Group, site=site)
class GroupAdmin(admin.ModelAdmin):
    @method_decorator(distributed_lock(key="'a'"))
    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None: ...


class OfAdmin:
    urlpatterns = (path("admin/", site.urls),)


def test_what_the_admin_calls_in_its_own_transaction_is_always_reported(settings: Any) -> None:
    """`save_model` runs inside the admin's transaction also where ATOMIC_REQUESTS is off."""
    settings.ROOT_URLCONF = OfAdmin
    (message,) = checks.check_atomic_requests()
    assert message.id == "locking.E011"
    assert "GroupAdmin.save_model is locked" in message.msg


@method_decorator(distributed_lock(key="order:{order_id}"), name="dispatch")
class ByKey(View):
    def get(self, request: HttpRequest, order_id: int) -> HttpResponse:
        return HttpResponse()


@method_decorator(distributed_lock(key=["order:{oder_id}:{request.user.pk|none}"]), name="dispatch")
class ByAnotherKey(View):
    def get(self, request: HttpRequest, order_id: int) -> HttpResponse:
        return HttpResponse()


class OfKeys:
    urlpatterns = (
        path("<int:order_id>/", include([path("key/", ByKey.as_view())])),
        path("another/<int:order_id>/", ByAnotherKey.as_view()),
    )


def test_a_key_that_its_route_doesnt_have_is_reported(settings: Any) -> None:
    """A decorated `dispatch` takes any argument, so a misspelled name would be an error at each request."""
    settings.ROOT_URLCONF = OfKeys
    (message,) = checks.check_keys()
    assert message.id == "locking.E012"
    assert "ByAnotherKey" in message.msg
    assert message.msg.endswith(
        "but a route to it has no argument 'oder_id'; it has order_id; did you mean"
        ' "order:{order_id}:{request.user.pk|none}"?'
    )


# --- live -------------------------------------------------------------------------------------------------


def test_a_plain_check_asks_no_server(settings: Any, backend_down: str) -> None:
    """`manage.py check` works where the servers aren't up yet."""
    call_command("check")


@pytest.mark.parametrize(
    ("version", "ids"),
    [("6.2.0", []), ("7.0.15", []), ("10.0.1", []), ("6.0.16", ["locking.E102"]), ("5.0", ["locking.E102"])],
)
def test_a_server_that_is_too_old_is_reported(version: str, ids: list[str]) -> None:
    """Redis 6.2 is the floor."""
    info = parse_info(f"# Server\r\nredis_version:{version}\r\nmaxmemory_policy:noeviction\r\n".encode())
    assert [message.id for message in judge(info, "default")] == ids


def test_the_server_s_own_words_are_understood(redis_database: redis.Redis) -> None:
    """The INFO of the real server is parsed down to the version that redis-py reads from it."""
    raw = b"txt:" + "\r\n".join(f"{k}:{v}" for k, v in redis_database.info().items()).encode()
    assert parse_info(raw)["redis_version"] == redis_database.info()["redis_version"]


def test_the_command_fails_in_a_misconfigured_project() -> None:
    """`manage.py check` of a project with a wrong ttl exits with the id and the hint."""
    code = (
        "from django.conf import settings; import django; from django.core.management import call_command;"
        "settings.configure(INSTALLED_APPS=['locking'], LOCKING={'default': {'TTL': 0}});"
        "django.setup(); call_command('check')"
    )
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode != 0
    assert "locking.E003" in done.stderr
    assert "10 s kept alive by the watchdog" in done.stderr

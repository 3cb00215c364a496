"""`python -m tests.locking.support.bare_project WITHOUT…`: every entry point where an app is missing.

Prints JSON: what `check` has to say, and what became of each entry point.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from typing import Any

import django
from celery import Celery
from django.conf import settings
from django.core.management import call_command
from django.http import HttpRequest, HttpResponse
from django.urls import path

NEEDS = {"admin": {"auth", "sessions", "templates"}}
"""What Django's admin doesn't do without."""

APPS = {
    "auth": ["django.contrib.contenttypes", "django.contrib.auth"],
    "sessions": ["django.contrib.sessions"],
    "admin": ["django.contrib.admin", "django.contrib.messages"],
    "app": ["locking"],
}
MIDDLEWARE = {
    "sessions": "django.contrib.sessions.middleware.SessionMiddleware",
    "admin": "django.contrib.messages.middleware.MessageMiddleware",
    "auth": "django.contrib.auth.middleware.AuthenticationMiddleware",
}
PROCESSORS = {
    "auth": "django.contrib.auth.context_processors.auth",
    "admin": "django.contrib.messages.context_processors.messages",
}


def settings_without(missing: set[str]) -> dict[str, Any]:
    """Return the settings of a project that has everything else."""
    missing = missing | {name for name, needed in NEEDS.items() if missing & needed}
    if "sessions" in missing:
        missing = missing | {"auth"}
    processors = ["django.template.context_processors.request"]
    processors += [path for name, path in PROCESSORS.items() if name not in missing]
    templates = {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {"context_processors": processors},
    }
    return {
        "SECRET_KEY": "bare",
        "ALLOWED_HOSTS": ["*"],
        "STATIC_URL": "static/",
        "ROOT_URLCONF": __name__,
        "DEFAULT_AUTO_FIELD": "django.db.models.BigAutoField",
        "DATABASES": {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        "LOCKING": {"default": {"BACKEND": "locking.backends.memory.MemoryBackend"}},
        "SILENCED_SYSTEM_CHECKS": ["locking.W001", "locking.W002"],
        "INSTALLED_APPS": [app for name, apps in APPS.items() if name not in missing for app in apps],
        "MIDDLEWARE": [middleware for name, middleware in MIDDLEWARE.items() if name not in missing],
        "TEMPLATES": [] if "templates" in missing else [templates],
    }


WITHOUT = set(sys.argv[1:])
settings.configure(**settings_without(WITHOUT))
django.setup()

from locking import distributed_lock, get_lock, locked_transaction  # noqa: E402


@distributed_lock(key="'order:'+<order_id>", wait=0)
def function(order_id: int) -> int:
    """Return what it gets."""
    return order_id


@distributed_lock(key="'order:'+<order_id>", wait=0)
async def coroutine(order_id: int) -> int:
    """Return what it gets."""
    return order_id


@distributed_lock(key="'order:'+<order_id>", wait=0)
def view(request: HttpRequest, order_id: int) -> HttpResponse:
    """Answer under a lock."""
    return HttpResponse("done")


@distributed_lock(key="'order:'+<order_id>", wait=0)
async def async_view(request: HttpRequest, order_id: int) -> HttpResponse:
    """Answer under a lock."""
    return HttpResponse("done")


urlpatterns = [path("<int:order_id>/", view), path("async/<int:order_id>/", async_view)]

app = Celery("bare", set_as_current=False)
app.conf.task_always_eager = True
task = app.task(name="task")(function)


def with_block() -> str:
    """Hold a lock."""
    with get_lock("block"):
        return "held"


async def async_block() -> str:
    """Hold a lock."""
    async with get_lock("block"):
        return "held"


def transaction() -> str:
    """Commit under a lock."""
    with locked_transaction("transaction"):
        return "committed"


def answer(address: str, **headers: Any) -> str:
    """Ask a view, in another thread than the one that may hold its lock."""
    from django.test import Client

    with ThreadPoolExecutor(1) as pool:
        response = pool.submit(lambda: Client().get(address, **headers)).result()
    return f"{response.status_code} {response['Content-Type'].split(';')[0]} {str(response.content, 'utf-8')}"


def refusal(address: str, **headers: Any) -> str:
    """Ask a view whose lock is taken."""
    with get_lock("order:7"):
        return answer(address, **headers)


def async_answer() -> str:
    """Ask an async view."""
    from django.test import AsyncClient

    return str(asyncio.run(AsyncClient().get("/async/7/")).content, "utf-8")


def listed() -> str:
    """Ask the command for what is held."""
    call_command("locks", "list", stdout=(output := StringIO()))
    return output.getvalue().split()[0]


def migrated() -> str:
    """Make the tables."""
    call_command("migrate", verbosity=0)
    return "migrated"


def checked() -> list[str]:
    """Return the messages of `check`."""
    from django.core.checks import run_checks

    return [f"{message.id}: {message.msg}" for message in run_checks() if not message.is_silenced()]


def rendered() -> str:
    """Render a template."""
    from django.template import engines

    return engines["django"].from_string("{{ request.path }}rendered").render({})


STEPS: dict[str, Callable[[], object]] = {
    "check": checked,
    "migrate": migrated,
    "function": lambda: function(7),
    "coroutine": lambda: asyncio.run(coroutine(7)),
    "block": with_block,
    "async block": lambda: asyncio.run(async_block()),
    "transaction": transaction,
    "task": lambda: task.delay(7).get(),
    "view": lambda: answer("/7/"),
    "async view": async_answer,
    "refused page": lambda: refusal("/7/", HTTP_ACCEPT="text/html"),
    "refused problem": lambda: refusal("/7/"),
    **({} if "templates" in WITHOUT else {"template": rendered}),
    **({} if "app" in WITHOUT else {"list": listed}),
}


def outcome(step: Callable[[], object]) -> object:
    """Return what a step returns, or its error as text."""
    try:
        return step()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    print(json.dumps({name: outcome(step) for name, step in STEPS.items()}))

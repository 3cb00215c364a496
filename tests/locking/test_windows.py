"""`locking` works where the system has no fork, no flock and few signals, as on Windows."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import asyncio, multiprocessing, os, pkgutil, select, signal, subprocess, sys, tempfile, time

import django
from django.conf import settings

LIBRARIES = ("celery", "celery.contrib.django.task", "django_redis", "requests", "kazoo.client",
             "opentelemetry.trace", "prometheus_client", "psycopg", "pytest", "redis.asyncio",
             "django.contrib.admin")
MISSING = {
    os: ("fork", "register_at_fork", "geteuid", "getuid", "killpg", "pidfd_open", "O_NOFOLLOW", "O_CLOEXEC",
         "pread", "pwrite", "setsid", "tcsetpgrp", "WNOHANG"),
    select: ("poll", "epoll"),
    signal: ("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGKILL", "SIGCONT", "SIGTTOU", "SIGCHLD"),
    time: ("clock_gettime", "CLOCK_BOOTTIME", "CLOCK_MONOTONIC"),
}

settings.configure(
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.admin",
                    "django.contrib.messages", "django.contrib.sessions"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1"}},
    LOCKING={"default": {"BACKEND": "locking.backends.memory.MemoryBackend"}},
)
django.setup()
for name in LIBRARIES:
    __import__(name)
for module, names in MISSING.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
for name in ("fcntl", "grp", "pwd", "resource", "termios", "tty"):
    sys.modules[name] = None

from django.apps import apps
apps.set_installed_apps([*settings.INSTALLED_APPS, "locking"])
import locking
for found in pkgutil.walk_packages(locking.__path__, "locking."):
    __import__(found.name)

with locking.get_lock("a", wait=1) as lease:
    lease.extend(20)
with locking.locked_transaction("b"):
    pass

async def main():
    async with locking.get_lock("a", wait=1):
        pass

asyncio.run(main())
print("works")
"""


def test_it_works_without_what_windows_does_not_have() -> None:
    """Every module is imported, and locks are acquired, in a process that lacks those names."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=root, timeout=100, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("works", "")

"""A process of its own that counts its locks: takes two, releases one, and holds the other until a signal."""

import sys

import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["locking", "locking.contrib.prometheus.LockMetrics"],
    LOCKING={"default": {"BACKEND": "locking.backends.memory.MemoryBackend"}},
)
django.setup()

from locking import get_lock  # noqa: E402

with get_lock("order:1"):
    pass
with get_lock("order:2"):
    print("holding", flush=True)
    sys.stdin.read()

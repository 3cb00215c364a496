"""Every trap of the settings and of the decorators at once."""

from settings import *  # type: ignore[import-not-found]  # noqa: F403
from settings import DATABASES

ROOT_URLCONF = "shop.traps"
DATABASES["second"] = DATABASES["default"]
LOCKING = {
    "default": {"CACHE": "default"},
    "misspelt": {"CACHE": "default", "TIMEOUT": 5},
    "endless": {"CACHE": "default", "TTL": 0},
    "cacheless": {"CACHE": "nowhere"},
    "lonely": {"BACKEND": "locking.backends.memory.MemoryBackend"},
}

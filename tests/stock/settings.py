"""A project that has installed `inventory` and no demo shop, on three databases."""

import os
import tempfile
from pathlib import Path
from typing import Any

import pymysql

from config import embedded

pymysql.install_as_MySQLdb()

SECRET_KEY = "tests"
USE_TZ = True
DATABASES: dict[str, dict[str, Any]] = {
    "default": embedded.database(),
    # Its socket is known once a test needs it; see conftest.py.
    "mariadb": {
        "ENGINE": "django.db.backends.mysql",
        "NAME": "holdfast",
        "USER": "root",
        "OPTIONS": {"unix_socket": "", "isolation_level": None},  # None: the server's, REPEATABLE READ
        "TEST": {"CHARSET": "utf8mb4"},
    },
    "sqlite": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": ":memory:",
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 30},
        "TEST": {"NAME": str(Path(tempfile.gettempdir()) / f"holdfast-stock-{os.getpid()}.sqlite3")},
    },
}
DATABASES["default"]["TEST"] = {"NAME": "test_stock"}
DATABASES["default"].setdefault("OPTIONS", {}).update(prepare_threshold=3)
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "locking",
    "inventory",
    "tests.stock.shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "tests.stock.urls"
STATIC_URL = "/static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
# Workers of one run sell items of the same names: each has a part of the cache of its own.
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": embedded.redis_url(),
        "KEY_PREFIX": os.environ.get("PYTEST_XDIST_WORKER", ""),
    }
}
LOCKING = {"default": {"LOCATION": embedded.redis_url()}}
INVENTORY: dict[str, Any] = {"default": {}}
REDIS_URL = embedded.redis_url()
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

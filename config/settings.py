"""Settings of the demo project; every choice that a deployment makes comes from the environment.

DATABASE_URL, REDIS_URL     servers to use; unset: private ones are started (see `config.embedded`)
DEBUG                       default true, because this is a demo that runs on the reader's own machine
SECRET_KEY                  required when DEBUG is false
ALLOWED_HOSTS               comma-separated
SECURE_PROXY_SSL_HEADER     X-Forwarded-Proto: behind a proxy that ends https and sets this header itself
CSRF_TRUSTED_ORIGINS        https://shop.example,…: where forms come from, if the proxy changes the host
REDIS_CLUSTER               true when REDIS_URL names a node of a Redis Cluster
ZOOKEEPER_HOSTS             zk1:2181,zk2:2181/locks: a lock alias `zookeeper`, and its strategy
ETCD_ENDPOINTS              http://etcd1:2379,…: a lock alias `etcd`, and its strategy
REDLOCK_URLS                redis://a,redis://b,redis://c: a lock alias `redlock`, and its strategy
CHECKOUT_STRATEGY           how `POST /checkout/` sells; see `config.selling`
WATCHDOG_TTL                seconds for which a killed worker's locks stay locked at most (default 5)
LOCKING_RUNTIME_DIR         where processes show that they are alive; empty: no process does
METRICS                     true: Prometheus' page at /metrics, for a network that isn't public
CONN_MAX_AGE                seconds for which each thread keeps its connection to the database; default 0
PREPARE_THRESHOLD           runs on a connection after which PostgreSQL remembers a statement of the checkout;
                            default 3; 0 = never, for poolers that share connections between transactions
DATABASE_REPLICA_URL        a streaming replica, from which products are shown; unset: DATABASE_URL
"""

import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import environ

from config import embedded
from config.api_keys import keys_of_callers
from config.coordination import lock_aliases
from config.redis_urls import as_broker, as_rate_storage
from config.selling import selling_strategies

env = environ.Env()
BASE_DIR = Path(__file__).resolve().parent.parent

DEBUG = env.bool("DEBUG", default=True)
SECRET_KEY = (
    env.str("SECRET_KEY", default="for-the-demo-on-this-machine-only") if DEBUG else env.str("SECRET_KEY")
)
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "ninja",
    "locking",
    "orders",
    "orders.lab",  # before inventory, whose command `oversell` the lesson's extends
    "inventory",
]

# prometheus_client isn't among what the project needs to run.
METRICS = env.bool("METRICS", default=False)
if METRICS:
    INSTALLED_APPS.append("locking.contrib.prometheus.LockMetrics")

MIDDLEWARE = [
    "config.middleware.SecurityHeaders",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "config.middleware.PageMiddleware",
]
PAGE_MIDDLEWARE = [  # not for JSON: see `config.middleware`
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
# The checks look for these by name in MIDDLEWARE, where PageMiddleware and SecurityHeaders stand for them.
SILENCED_SYSTEM_CHECKS = [
    *("admin.E408", "admin.E409", "admin.E410"),
    *("security.W001", "security.W002", "security.W003"),
]

ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
ASGI_APPLICATION = "config.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "config" / "templates"],  # the admin in the shop's colors
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]


def named_database(variable: str = "DATABASE_URL") -> dict[str, Any]:
    """Return its database; the folder of a Unix socket may be written as its host, %2Flike%2Fthis."""
    database: dict[str, Any] = env.db(variable)
    return database | {"HOST": unquote(database.get("HOST") or "")}


# The servers: yours where the variables are set, private ones otherwise.
try:
    DATABASE: dict[str, Any] = named_database() if "DATABASE_URL" in env else embedded.database()
    REDIS_URL: str = env.str("REDIS_URL") if "REDIS_URL" in env else embedded.redis_url()
except embedded.EmbeddedError as error:
    raise SystemExit(f"holdfast: {error}") from None

DATABASES = {"default": DATABASE}
# Nothing is written through it, and no stock is decided by what it says.
if "DATABASE_REPLICA_URL" in env:
    DATABASES["replica"] = named_database("DATABASE_REPLICA_URL") | {"TEST": {"MIRROR": "default"}}
PRODUCTS_DATABASE = "replica" if "replica" in DATABASES else "default"

# `make serve` keeps the connections of the server's threads. A pool would let requests wait in the queue for
# a database that is down and ask it at ever longer intervals; a thread is refused at once, and back at once.
# A connection that died while its thread slept is found out before a request uses it: after that it would be
# unknown what came of the order.
for database in DATABASES.values():
    if database["ENGINE"] == "django.db.backends.postgresql":
        database["ENGINE"] = "config.postgresql"
    database.setdefault("CONN_MAX_AGE", env.int("CONN_MAX_AGE", default=0))
    database.setdefault("CONN_HEALTH_CHECKS", True)

# psycopg's own; Django turns it off unless it is named.
DATABASE.setdefault("OPTIONS", {}).setdefault(
    "prepare_threshold", env.int("PREPARE_THRESHOLD", default=3) or None
)

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": "holdfast",
    },
}

REDIS_CLUSTER = env.bool("REDIS_CLUSTER", default=False)
# A cache's client would ask the one node for every key; the lock backend finds the others by itself.
LOCK_SERVER: dict[str, Any] = {"LOCATION": [REDIS_URL]} if REDIS_CLUSTER else {"CACHE": "default"}

LOCKING: dict[str, dict[str, Any]] = {
    "default": {
        "BACKEND": "locking.backends.redis.RedisBackend",
        **LOCK_SERVER,
        "TTL": None,  # kept alive by the watchdog
        "WAIT": 5.0,
        "KEY_PREFIX": "",
        "ON_CONFLICT": "auto",
        "OPTIONS": {},
    },
    "database": {"BACKEND": "locking.backends.database.DatabaseBackend"},
    **lock_aliases(os.environ),
}
# A killed worker's product stays locked until its lease ends: let that be sooner than the buyers behind it
# give up (10 s). A worker frozen for longer loses its lock, and its sale is refused.
for entry in LOCKING.values():
    entry["WATCHDOG_TTL"] = env.float("WATCHDOG_TTL", default=5.0)
# Workers of one host release each other's locks when one is killed; see locking.liveness.
if "LOCKING_RUNTIME_DIR" in env:
    LOCKING_RUNTIME_DIR = env.str("LOCKING_RUNTIME_DIR") or None

CHECKOUT_STRATEGY = env.str("CHECKOUT_STRATEGY", default="redis_lock")
INVENTORY = selling_strategies(CHECKOUT_STRATEGY, LOCKING, others=DEBUG)

CURRENCY = env.str("CURRENCY", default="EUR")  # of new products, by ISO 4217
PAYMENT_WINDOW = env.int("PAYMENT_WINDOW", default=900)  # seconds to pay an order; 0 = without end
WORKER_CPU_AFFINITY = env.bool("WORKER_CPU_AFFINITY", default=False)  # a worker's Python stays on one core
CONNECTIONS_PER_ADDRESS = env.int("CONNECTIONS_PER_ADDRESS", default=256)  # of one worker; 0 = no limit
CHECKOUT_RATE = env.int("CHECKOUT_RATE", default=0)  # requests per minute by one customer; 0 = no limit
CHECKOUT_RATE_PER_ADDRESS = env.int(
    "CHECKOUT_RATE_PER_ADDRESS", default=10 * CHECKOUT_RATE
)  # by all customers
# Networks of the proxies whose X-Forwarded-For is believed; empty: the connection's address is the client's.
TRUSTED_PROXIES = env.list("TRUSTED_PROXIES", default=[])
CHECKOUT_RATE_STORAGE = env.str("CHECKOUT_RATE_STORAGE", default=as_rate_storage(REDIS_URL, REDIS_CLUSTER))
SOLD_OUT_MEMORY = env.float(
    "SOLD_OUT_MEMORY", default=0.0
)  # seconds; see `orders.selling.sold_out_memory`; 0 = off
IDEMPOTENCY_KEY_REQUIRED = env.bool("IDEMPOTENCY_KEY_REQUIRED", default=False)  # by `POST /checkout/`
IDEMPOTENCY_KEPT = env.int("IDEMPOTENCY_KEPT", default=24 * 3600)  # seconds for which a key is known
# Refusals cost a client nothing, and each leaves a row: theirs go sooner.
IDEMPOTENCY_REFUSALS_KEPT = env.int("IDEMPOTENCY_REFUSALS_KEPT", default=600)

EVENTS_KEPT = env.int("EVENTS_KEPT", default=7 * 24 * 3600)  # seconds for which a delivered event is kept

LAB_CHECKOUT = env.bool("LAB_CHECKOUT", default=DEBUG)  # whether `POST /lab/checkout/` sells

# Who sends a request, and what is allowed to whom: see `orders.http.callers`.
API_KEYS = keys_of_callers(env.list("API_KEYS", default=[]))
CALLER = env.str(
    "CALLER", default="orders.http.callers.by_api_key" if API_KEYS else "orders.http.callers.anonymous"
)
OPEN_DEMO = env.bool("OPEN_DEMO", default=DEBUG)  # anonymous callers may pay, and see every order
PAYMENT_WEBHOOK_SECRETS = env.list("PAYMENT_WEBHOOK_SECRETS", default=[])  # any of them may have signed

CELERY_BROKER_URL = env.str("CELERY_BROKER_URL", default=as_broker(REDIS_URL))
CELERY_TASK_ACKS_LATE = True  # a task of a killed worker is run again; the tasks here may be run twice
CELERY_TASK_IGNORE_RESULT = True
CELERY_TIMEZONE = "UTC"
# Seconds. What a task sweeps up is free before it comes, too, for a sale that needs it: see the docs.
CELERY_BEAT_SCHEDULE: dict[str, Any] = {
    "relay events": {"task": "orders.tasks.relay_events", "schedule": 5},
    "expire orders": {"task": "orders.tasks.expire_orders", "schedule": 30},
    "sweep reservations": {"task": "orders.tasks.sweep_reservations", "schedule": 30},
    "notice low stock": {"task": "orders.tasks.notice_low_stock", "schedule": 15},
    "audit orders": {"task": "orders.tasks.audit_orders", "schedule": 3600},
    "forget events": {"task": "orders.tasks.forget_events", "schedule": 3600},
    "forget keys": {"task": "orders.tasks.forget_keys", "schedule": 600},
}

AUTHENTICATION_BACKENDS = ["config.demo_login.DemoAwareBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]
LOCALE_PATHS = [BASE_DIR / "config" / "locale"]
USE_I18N = True
USE_TZ = True
TIME_ZONE = "UTC"

STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
# Under DEBUG files are served from the apps themselves, so that `make serve` needs no collectstatic.
WHITENOISE_USE_FINDERS = DEBUG
WHITENOISE_AUTOREFRESH = DEBUG
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if DEBUG
        else "whitenoise.storage.CompressedManifestStaticFilesStorage",
    },
}

# Behind a proxy that ends https every form would look as if it came from elsewhere, and redirects never end.
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])
if SECURE_PROXY := env.str("SECURE_PROXY_SSL_HEADER", default=""):
    SECURE_PROXY_SSL_HEADER = (f"HTTP_{SECURE_PROXY.upper().replace('-', '_')}", "https")

if not DEBUG:
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = env.bool("SECURE_COOKIES", default=True)
    LANGUAGE_COOKIE_SECURE = SESSION_COOKIE_SECURE
    SECURE_SSL_REDIRECT = env.bool("SECURE_SSL_REDIRECT", default=False)
    SECURE_HSTS_SECONDS = env.int(
        "SECURE_HSTS_SECONDS", default=0
    )  # 31536000 once everything is served by https

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": env.str("LOG_LEVEL", default="WARNING")},
    # A refusal is an answer, not a fault of the shop: without this a rush writes a line for each.
    "loggers": {"django.request": {"level": "ERROR"}},
}

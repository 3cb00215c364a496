"""A shop of django-oscar with its defaults; SHOP says what protects its stock: inventory, lock or nothing."""

import json
import os

from oscar import INSTALLED_APPS as OSCARS_APPS
from oscar.defaults import *  # noqa: F403

OURS = {
    "inventory": {
        "oscar.apps.partner.apps.PartnerConfig": "examples.oscar.partner.apps.PartnerConfig",
        "oscar.apps.order.apps.OrderConfig": "examples.oscar.order.apps.OrderConfig",
    },
    "lock": {"oscar.apps.checkout.apps.CheckoutConfig": "examples.oscar.checkout.apps.CheckoutConfig"},
    "nothing": {},
}[os.environ.get("SHOP", "inventory")]

SECRET_KEY = "of no use to anyone outside this example"  # noqa: S105
ALLOWED_HOSTS = ["127.0.0.1"]
INSTALLED_APPS = [OURS.get(app, app) for app in OSCARS_APPS] + ["locking", "inventory"]
MIGRATION_MODULES = {"partner": "oscar.apps.partner.migrations", "order": "oscar.apps.order.migrations"}
MIDDLEWARE = [  # without CSRF protection: the customers of this shop are scripts
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "oscar.apps.basket.middleware.BasketMiddleware",
    "django.contrib.flatpages.middleware.FlatpageFallbackMiddleware",
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
                "oscar.apps.search.context_processors.search_form",
                "oscar.apps.checkout.context_processors.checkout",
                "oscar.apps.communication.notifications.context_processors.notifications",
                "oscar.core.context_processors.metadata",
            ],
        },
    }
]
ROOT_URLCONF = "examples.oscar.urls"
STATIC_URL = "static/"
SITE_ID = 1
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
HAYSTACK_CONNECTIONS = {"default": {"ENGINE": "haystack.backends.simple_backend.SimpleEngine"}}
EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"
OSCAR_ALLOW_ANON_CHECKOUT = True
OSCAR_DEFAULT_CURRENCY = "EUR"
DATABASES = {"default": json.loads(os.environ["SHOP_DATABASE"])}
CACHES = {
    "default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["SHOP_REDIS"]},
}
OSCAR_INITIAL_ORDER_STATUS = "Pending"
OSCAR_ORDER_STATUS_PIPELINE = {"Pending": ("Cancelled",), "Cancelled": ()}

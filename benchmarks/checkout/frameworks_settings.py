"""The served shop with the same checkout through django-ninja beside its own."""

from config.settings import *  # noqa: F403

ROOT_URLCONF = "benchmarks.checkout.frameworks_urls"

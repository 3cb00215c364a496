"""The project's settings as a deployment has them, with the addresses of the views to compare with."""

from config.settings import *  # noqa: F403

ROOT_URLCONF = "benchmarks.checkout.urls"

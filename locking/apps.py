"""The app `locking`."""

from django.apps import AppConfig


class LockingConfig(AppConfig):
    """Registration with Django."""

    name = "locking"
    label = "locking"
    default_auto_field = "django.db.models.BigAutoField"

"""The app `inventory`."""

from django.apps import AppConfig


class InventoryConfig(AppConfig):
    """Registration with Django."""

    name = "inventory"
    label = "inventory"
    default_auto_field = "django.db.models.BigAutoField"

"""The app of stock."""

from django.apps import AppConfig


class InventoryConfig(AppConfig):
    """Products, stock and the strategies."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "inventory"

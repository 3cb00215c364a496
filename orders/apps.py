"""The app of orders."""

from django.apps import AppConfig


class OrdersConfig(AppConfig):
    """Orders and the checkout."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "orders"

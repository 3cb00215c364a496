"""The app `orders`."""

from django.apps import AppConfig


class OrdersConfig(AppConfig):
    """Registration with Django."""

    name = "orders"
    label = "orders"
    default_auto_field = "django.db.models.BigAutoField"

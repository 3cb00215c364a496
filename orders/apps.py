"""The app of orders."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class OrdersConfig(AppConfig):
    """Orders and the checkout."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "orders"
    verbose_name = _("Orders")

    def ready(self) -> None:
        """Register the system checks."""
        from orders import checks  # noqa: F401

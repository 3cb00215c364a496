"""The app of orders."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class OrdersConfig(AppConfig):
    """Orders and the checkout."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "orders"
    verbose_name = _("Orders")

    def ready(self) -> None:
        """Register the system checks, and hear when stock has changed."""
        from django.conf import settings

        from inventory.signals import posted
        from orders import checks  # noqa: F401
        from orders.selling.sold_out_memory import stock_changed

        if settings.SOLD_OUT_MEMORY > 0:
            posted.connect(stock_changed, dispatch_uid="orders.sold_out_memory")

"""The app of orders."""

from typing import Any

from django.apps import AppConfig
from django.db.backends.signals import connection_created
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

        connection_created.connect(plan_once, dispatch_uid="orders.plan_once")
        if settings.SOLD_OUT_MEMORY > 0:
            posted.connect(stock_changed, dispatch_uid="orders.sold_out_memory")


def plan_once(connection: Any, **_: object) -> None:
    """Have PostgreSQL plan the statements of a sale once per connection; see `inventory.statements`."""
    raw = connection.connection
    if connection.vendor == "postgresql" and raw.prepare_threshold is not None:
        raw.execute("SET plan_cache_mode = force_generic_plan")

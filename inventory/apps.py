"""The app of stock."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class InventoryConfig(AppConfig):
    """Registers the system checks of `inventory`."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "inventory"
    verbose_name = _("Inventory")

    def ready(self) -> None:
        """Import the checks, so that Django finds them."""
        from inventory import checks  # noqa: F401

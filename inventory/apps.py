"""The app of stock."""

from django.apps import AppConfig


class InventoryConfig(AppConfig):
    """Registers the system checks of `inventory`."""

    default_auto_field = "django.db.models.BigAutoField"
    name = "inventory"

    def ready(self) -> None:
        """Import the checks, so that Django finds them."""
        from inventory import checks  # noqa: F401

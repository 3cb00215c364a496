"""The Django app: `INSTALLED_APPS += ["inventory"]`."""

from __future__ import annotations

from types import ModuleType

from django.apps import AppConfig
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy as _


def installed_label() -> str:
    """Return the app's label in this project, for migrations and fields that refer to it."""
    from django.apps import apps

    labels = (config.label for config in apps.app_configs.values() if config.name == "inventory")
    return next(labels, "inventory")


class InventoryConfig(AppConfig):
    """Holdfast's stock. Subclass it with another `label` where an app of yours has that one."""

    name = "inventory"
    verbose_name = _("Inventory")
    default_auto_field = "django.db.models.BigAutoField"

    def __init__(self, app_name: str, app_module: ModuleType | None) -> None:
        super().__init__(app_name, app_module)
        others = [entry for entry in settings.INSTALLED_APPS if entry.endswith(".inventory")]
        if self.label == "inventory" and others:
            raise ImproperlyConfigured(
                f"{others[0]!r} and Holdfast's 'inventory' have the same app label. Keep yours: put a "
                f"subclass of inventory.apps.InventoryConfig with label = 'stock' into a module of "
                f"your project, and name that class in INSTALLED_APPS instead of 'inventory'."
            )

    def ready(self) -> None:
        """Register the system checks."""
        from inventory import checks  # noqa: F401

"""The Django app: `INSTALLED_APPS += ["locking"]`."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class LockingConfig(AppConfig):
    """Holdfast's locks."""

    name = "locking"
    verbose_name = _("Locks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks, and let heartbeat, deadlock detection and audit listen to the core."""
        from locking import checks  # noqa: F401
        from locking.inspection import audit, deadlocks, heartbeat  # noqa: F401

        audit.listen()

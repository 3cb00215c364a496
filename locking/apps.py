"""The Django app: `INSTALLED_APPS += ["locking"]`."""

import atexit
from typing import Any

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class LockingConfig(AppConfig):
    """Holdfast's locks."""

    name = "locking"
    verbose_name = _("Locks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks; have what is built on the core hear of locks, and of the end."""
        from locking import checks, live_checks, liveness  # noqa: F401
        from locking.core import lease, waits
        from locking.inspection import audit, heartbeat
        from locking.signals import observe

        observe(liveness.watcher)
        atexit.register(liveness.leave)
        heartbeat.start()
        waits.watch = watch_for_deadlocks
        audit.listen()
        atexit.register(lease.release_what_is_left)  # the last one registered runs first


def watch_for_deadlocks(*wait: Any) -> Any:
    """Load the search for deadlocks with the first wait, to watch that and all that follow."""
    from locking.core import waits
    from locking.inspection.deadlocks import DeadlockWatch

    waits.watch = DeadlockWatch
    return DeadlockWatch(*wait)

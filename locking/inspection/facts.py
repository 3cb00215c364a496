"""What there is to know of one hold, labelled: the admin's page and `manage.py locks show` print it."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext_lazy as _

from locking.core.kinds import LABELS
from locking.inspection.formatting import age, duration, visible
from locking.inspection.held import STATES, HeldLock


def facts(hold: HeldLock) -> list[tuple[Any, Any]]:
    """Return labels and values; what isn't known is None."""
    return [
        (_("state"), STATES[hold.state]),
        (_("kind"), LABELS[hold.kind]),
        (_("backend"), hold.backend),
        (_("key"), visible(hold.key)),
        (_("holder"), visible(hold.holder)),
        (_("at work on"), visible(hold.doing or "") or None),
        (_("taken at"), hold.site),
        (_("program"), hold.program),
        (_("process began"), age(hold.started)),
        (_("last sign of life"), None if hold.silent is None else _("%s ago") % duration(hold.silent)),
        (_("owner"), hold.owner),
        (_("hold count"), hold.count),
        (_("held for"), duration(hold.held_for)),
        (_("left of the lease"), _("no end") if hold.remaining is None else duration(hold.remaining)),
        (_("length of the lease"), None if hold.ttl is None else duration(hold.ttl)),
        (_("renewals"), hold.renewals),
        (_("waiters"), hold.waiter_count),
        (_("fencing token"), hold.token or None),
    ]

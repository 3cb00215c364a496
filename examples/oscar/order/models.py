"""Oscar's models, as they are."""

from oscar.apps.order.models import *  # noqa: F403

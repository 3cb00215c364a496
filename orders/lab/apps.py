"""The app's own settings for Django."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class LabConfig(AppConfig):
    """The oversell lab."""

    name = "orders.lab"
    label = "lab"
    verbose_name = _("oversell lab")

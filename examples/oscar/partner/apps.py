"""Oscar's partner app, with the stock record of this folder in place of its own."""

from oscar.apps.partner.apps import PartnerConfig as OscarsConfig


class PartnerConfig(OscarsConfig):
    """Oscar's tables and migrations: see MIGRATION_MODULES in the settings."""

    name = "examples.oscar.partner"

"""Oscar's order app, with the order creator and event handler of this folder in place of its own."""

from oscar.apps.order.apps import OrderConfig as OscarsConfig


class OrderConfig(OscarsConfig):
    """Oscar's tables and migrations: see MIGRATION_MODULES in the settings."""

    name = "examples.oscar.order"

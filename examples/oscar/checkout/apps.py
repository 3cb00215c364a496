"""Oscar's checkout, with the views of this folder in place of its own."""

from oscar.apps.checkout.apps import CheckoutConfig as OscarsConfig


class CheckoutConfig(OscarsConfig):
    """Oscar finds the views of this app beside its own."""

    name = "examples.oscar.checkout"

"""The project's settings as a deployment has them, with the addresses of the views to compare with."""

from config.selling import selling_strategies
from config.settings import *  # noqa: F403
from config.settings import CHECKOUT_STRATEGY, LOCKING

ROOT_URLCONF = "benchmarks.checkout.urls"
INVENTORY = selling_strategies(CHECKOUT_STRATEGY, LOCKING)

# All buyers come from one address here, more than a worker accepts from one.
CONNECTIONS_PER_ADDRESS = 0

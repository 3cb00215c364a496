"""What tests with faults share."""

from tests.lock_fixtures import *  # noqa: F403

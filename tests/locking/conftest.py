"""What the lock's tests share."""

from tests.lock_fixtures import *  # noqa: F403

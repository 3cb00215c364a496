"""Every app that the type checker meets: the project's, and those of tests and examples."""

from config.settings import *  # noqa: F403
from config.settings import INSTALLED_APPS

INSTALLED_APPS += ["tests.stock.shop", "examples.bookshop"]

"""`manage.py oversell --path …`: race your own checkout."""

from inventory.racing.command import Command

__all__ = ["Command"]

"""Locks in Django's admin: what is held now, what operators did, and the fences."""

from locking.admin import audit, held

__all__ = ["audit", "held"]

"""One product, and what was sold of it."""

# ruff: noqa: DJ008 - never shown in an admin

from django.db import models


class Product(models.Model):
    """What is for sale."""

    on_hand = models.IntegerField()


class Sale(models.Model):
    """One piece sold."""

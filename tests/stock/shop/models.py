"""A project's own models: they know nothing of stock but their field."""

from django.db import models

from inventory.models import StockField


class Book(models.Model):
    title = models.CharField(max_length=200)
    price = models.DecimalField(max_digits=8, decimal_places=2, default=10)
    low_since = models.DateTimeField(null=True)
    stock = StockField()

    def __str__(self) -> str:
        return self.title


class Order(models.Model):
    reference = models.CharField(max_length=200, unique=True)

    def __str__(self) -> str:
        return self.reference


class Printed(models.Model):
    isbn = models.CharField(max_length=13, unique=True)
    stock = StockField(sku="isbn")

    def __str__(self) -> str:
        return self.isbn

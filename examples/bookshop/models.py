"""A book of one's own, and its orders."""

from django.db import models

from inventory.models import StockField


class Book(models.Model):
    """Something to read."""

    title = models.CharField(max_length=200)
    stock = StockField()

    def __str__(self) -> str:
        return self.title


class Order(models.Model):
    """So many copies of a book for one customer."""

    book = models.ForeignKey(Book, on_delete=models.PROTECT)
    copies = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"{self.copies} × {self.book}"

"""Five ways in which teams sell a book."""

from __future__ import annotations

import threading
from typing import ClassVar

from django.db import models, transaction
from django.db.models import F
from django.http import HttpRequest, HttpResponse


class Book(models.Model):
    """A book with its stock in a column."""

    title = models.CharField(max_length=40, default="Emma")
    stock = models.IntegerField()
    objects: ClassVar[models.Manager[Book]] = models.Manager()

    class Meta:
        """Of no installed app: the tests make its table."""

        app_label = "racing_bookshop"

    def __str__(self) -> str:
        """Return what is there."""
        return f"{self.stock} in stock"


def read_modify_write(pk: int) -> bool:
    """Sell as everyone writes it first."""
    book = Book.objects.get(pk=pk)
    if book.stock < 1:
        return False
    book.stock -= 1
    book.save()
    return True


def check_then_subtract(pk: int) -> bool:
    """Sell with an F expression behind a check: no update is lost, and yet too much is sold."""
    if Book.objects.get(pk=pk).stock < 1:
        return False
    Book.objects.filter(pk=pk).update(stock=F("stock") - 1)
    return True


_lock = threading.Lock()


def locked_in_this_process(pk: int) -> bool:
    """Sell under a lock that other processes don't see."""
    with _lock:
        return read_modify_write(pk)


def conditional_update(pk: int) -> bool:
    """Sell by one statement that decides and writes."""
    return Book.objects.filter(pk=pk, stock__gt=0).update(stock=F("stock") - 1) == 1


def row_lock(pk: int) -> bool:
    """Sell under `select_for_update`."""
    with transaction.atomic():
        book = Book.objects.select_for_update().get(pk=pk)
        if book.stock < 1:
            return False
        book.stock -= 1
        book.save()
        return True


def buy(request: HttpRequest, pk: int) -> HttpResponse:
    """Sell over HTTP."""
    return HttpResponse(status=200 if read_modify_write(pk) else 409)

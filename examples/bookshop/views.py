"""Two pages: the shelf, and the button."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_POST

from examples.bookshop.models import Book, Order
from inventory import SoldOut


def shelf(request: HttpRequest) -> HttpResponse:
    """List fifty books and what is there of them: one query."""
    return render(request, "shelf.html", {"books": Book.objects.select_related("stock")[:50]})


@require_POST
def buy(request: HttpRequest, pk: int) -> HttpResponse:
    """Sell copies; the form's token makes a double click one order."""
    book, copies, token = get_object_or_404(Book, pk=pk), int(request.POST["copies"]), request.POST["token"]
    try:
        order = book.stock.sell(
            copies, cause=f"form {token}", write=lambda lines: Order.objects.create(book=book, copies=copies)
        )
    except SoldOut as refused:
        return render(request, "sold_out.html", {"short": refused.shortages[0]}, status=409)
    return render(request, "thanks.html", {"order": order}, status=201)

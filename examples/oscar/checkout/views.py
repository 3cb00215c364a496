"""django-oscar's own checkout, one order at a time for each product."""

from django.shortcuts import redirect
from django.utils.functional import empty
from oscar.apps.checkout.views import PaymentDetailsView as OscarsView

from locking import LockNotOwned, assert_locked, distributed_lock


def products(view, request, *args, **kwargs):
    """Name the basket and each of its products, and forget the basket: it was read before the lock."""
    names = {f"product:{line.product_id}" for line in request.basket.all_lines()}
    basket, request._basket_cache, request.basket._wrapped = request.basket.pk, None, empty
    return [f"basket:{basket}", *sorted(names)]


@distributed_lock(key=products, wait=30)
def sell(view, request, *args, **kwargs):
    """Let Oscar check the stock and place the order, unless the basket has changed while this waited."""
    try:
        assert_locked(*products(view, request))
    except LockNotOwned:
        return redirect("checkout:preview")
    return OscarsView.dispatch(view, request, *args, **kwargs)


class PaymentDetailsView(OscarsView):  # noqa: D101 - Oscar's
    def dispatch(self, request, *args, **kwargs):  # noqa: D102 - not `post`: Oscar checks the stock here
        place = sell if request.method == "POST" else OscarsView.dispatch
        return place(self, request, *args, **kwargs)

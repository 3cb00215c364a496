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


class PaymentDetailsView(OscarsView):  # noqa: D101 - Oscar's
    @distributed_lock(key=products, wait=30, condition=lambda view, request, **_: request.method == "POST")
    def dispatch(self, request, *args, **kwargs):  # noqa: D102 - not `post`: Oscar checks the stock here
        try:
            if request.method == "POST":
                assert_locked(*products(self, request))
        except LockNotOwned:  # the basket has changed while this request waited
            return redirect("checkout:preview")
        return super().dispatch(request, *args, **kwargs)

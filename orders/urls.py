"""Addresses of the shop: JSON for programs, pages for people."""

from django.urls import include, path
from django.views.i18n import JavaScriptCatalog

from orders.http import pages
from orders.http.api import addresses
from orders.http.shop_form import shop_order

app_name = "orders"

api = addresses()

urlpatterns = [
    *api,
    path("checkout", api[0].callback),  # a redirect would lose the body
    path("openapi.json", pages.openapi, name="openapi"),
    path("docs/", pages.docs, name="docs"),
    path("", pages.start, name="start"),
    path("shop/", pages.shop, name="shop"),
    path("shop/order/", shop_order, name="shop-order"),
    path("lab/", include("orders.lab.urls")),
    path("problems/", pages.problems, name="problems"),
    path("favicon.ico", pages.favicon),
    path("texts.js", JavaScriptCatalog.as_view(packages=["orders"]), name="texts"),
]

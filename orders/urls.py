"""Addresses of the shop: pages for people, JSON for programs."""

from django.urls import path
from django.views.i18n import JavaScriptCatalog

from orders import views
from orders.payment_webhook import payment_webhook
from orders.shop_form import shop_order

app_name = "orders"

urlpatterns = [
    path("checkout/", views.checkout_view, name="checkout"),  # first: it is asked for most
    path("checkout", views.checkout_view),  # a redirect would lose the body
    path("", views.start, name="start"),
    path("shop/", views.shop, name="shop"),
    path("shop/order/", shop_order, name="shop-order"),
    path("problems/", views.problems, name="problems"),
    path("orders/", views.orders_view, name="orders"),
    path("orders/<str:order_id>/", views.order_view, name="order"),
    path("orders/<str:order_id>/pay/", views.pay_view, name="pay"),
    path("orders/<str:order_id>/cancel/", views.cancel_view, name="cancel"),
    path("reservations/", views.reservations_view, name="reservations"),
    path("reservations/<str:basket>/", views.reservation_view, name="reservation"),
    path("reservations/<str:basket>/extend/", views.extend_view, name="extend"),
    path("payments/webhook/", payment_webhook, name="payment-webhook"),
    path("openapi.json", views.openapi_view, name="openapi"),
    path("products/", views.products_view, name="products"),
    path("favicon.ico", views.favicon),
    path("texts.js", JavaScriptCatalog.as_view(packages=["orders"]), name="texts"),
]

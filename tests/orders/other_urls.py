"""The shop's addresses below another path."""

from django.urls import include, path

urlpatterns = [path("elsewhere/", include("orders.urls"))]

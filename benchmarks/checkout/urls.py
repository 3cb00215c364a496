"""The shop's addresses, and beside them the views that the benchmark compares them with."""

from __future__ import annotations

from django.urls import include, path

from benchmarks.checkout import ninja_views, subjects, views

subjects.offer()
__all__ = ["ninja_views", "urlpatterns"]  # its operations are declared before their addresses are asked for

bench = [
    path("empty/", views.empty),
    path("select/", views.select),
    path("unlocked/", views.unlocked),
    path("select_for_update/", views.select_for_update),
    path("distributed_lock/", views.locked),
    path("plain_write/", views.plain_write),
]
urlpatterns = [
    path("bench/", include(bench)),
    path("", include("orders.urls")),
]

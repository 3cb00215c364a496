"""The shop's addresses, and beside them the views that the benchmark compares them with."""

from __future__ import annotations

from django.urls import include, path

from benchmarks.checkout import subjects, views

subjects.offer()

bench = [
    path("empty/", views.empty),
    path("select/", views.select),
    path("unlocked/", views.unlocked),
    path("select_for_update/", views.select_for_update),
    path("distributed_lock/", views.locked),
]
urlpatterns = [
    path("bench/", include(bench)),
    path("", include("orders.urls")),
]

"""The shop's addresses, and beside them the views that the benchmark compares them with."""

from __future__ import annotations

from django.urls import include, path

from benchmarks.checkout import subjects, views

subjects.offer()

urlpatterns = [
    path("bench/empty/", views.empty),
    path("bench/select/", views.select),
    path("bench/unlocked/", views.unlocked),
    path("bench/select_for_update/", views.select_for_update),
    path("bench/distributed_lock/", views.locked),
    path("", include("orders.urls")),
]

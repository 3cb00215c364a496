"""Addresses of the lab."""

from django.urls import path

from orders.lab import views

urlpatterns = [
    path("", views.lab_page, name="lab"),
    path("sources/<str:name>/", views.source_view, name="lab-source"),
    path("races/", views.start_race, name="lab-races"),
    path("steps/", views.start_steps, name="lab-steps"),
    path("runs/<slug:run_id>/", views.run_view, name="lab-run"),
    path("runs/<slug:run_id>/say/", views.say, name="lab-say"),
]

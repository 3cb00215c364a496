"""Addresses of the lab."""

from django.urls import path
from django.views.i18n import JavaScriptCatalog

from orders.lab.pages import checkout, views

app_name = "lab"

urlpatterns = [
    path("", views.lab_page, name="page"),
    path("checkout/", checkout.checkout, name="checkout"),
    path("sources/<str:name>/", views.source_view, name="source"),
    path("races/", views.start_race, name="races"),
    path("steps/", views.start_steps, name="steps"),
    path("runs/<slug:run_id>/", views.run_view, name="run"),
    path("runs/<slug:run_id>/say/", views.say, name="say"),
    path("texts.js", JavaScriptCatalog.as_view(packages=["orders.lab"]), name="texts"),
]

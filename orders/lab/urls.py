"""Addresses of the lab."""

from django.urls import path
from django.views.i18n import JavaScriptCatalog

from orders.lab.pages import checkout, views, votes

app_name = "lab"

urlpatterns = [
    path("", views.lab_page, name="page"),
    path("checkout/", checkout.checkout, name="checkout"),
    path("sources/<str:name>/", views.source_view, name="source"),
    path("races/", views.start_race, name="races"),
    path("steps/", views.start_steps, name="steps"),
    path("runs/<slug:run_id>/", views.run_view, name="run"),
    path("runs/<slug:run_id>/say/", views.say, name="say"),
    path("votes/", votes.start_vote, name="votes"),
    path("votes/<slug:run_id>/", votes.vote, name="vote"),
    path("votes/<slug:run_id>/counts/", votes.vote_counts, name="vote-counts"),
    path("texts.js", JavaScriptCatalog.as_view(packages=["orders.lab"]), name="texts"),
]

"""The shop at the root."""

from django.urls import path

from examples.bookshop import views

urlpatterns = [path("", views.shelf), path("buy/<int:pk>/", views.buy)]

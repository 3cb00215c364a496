"""The two ways to buy."""

from django.urls import path

from .views import by_hand, decorated

urlpatterns = [path("by-hand/", by_hand), path("decorated/", decorated)]

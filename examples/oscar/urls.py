"""The shop at the root."""

from django.apps import apps
from django.urls import include, path

shop = apps.get_app_config("oscar")
urlpatterns = [path("i18n/", include("django.conf.urls.i18n")), path("", include(shop.urls[0]))]

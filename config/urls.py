"""Addresses of the demo project."""

from django.conf import settings
from django.contrib import admin
from django.urls import include, path
from django.utils.module_loading import import_string

from locking.contrib.health import livez, readyz

urlpatterns = [
    path("livez", livez),
    path("readyz", readyz),
    path("admin/", admin.site.urls),
    path("i18n/", include("django.conf.urls.i18n")),
    path("lab/", include("orders.lab.urls")),
    path("", include("orders.urls")),
]

if settings.METRICS:
    urlpatterns.insert(0, path("metrics", import_string("locking.contrib.prometheus.metrics_view")))

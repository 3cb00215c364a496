"""Views that are decorated wrongly, each in its own way."""

from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views import View

from locking import distributed_lock


@distributed_lock(key="'mug'", backend="nowhere")
def on_a_missing_alias(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@distributed_lock(key="'mug'", using=["default", "second", "nowhere"])
def on_a_missing_database(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@distributed_lock(key="'mug'")
def with_one_of_two_databases(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


class OnTheMethod(View):
    @distributed_lock(key="'mug'", using=["default", "second"])
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


urlpatterns = [
    path("1/", on_a_missing_alias),
    path("2/", on_a_missing_database),
    path("3/", with_one_of_two_databases),
    path("4/", OnTheMethod.as_view()),
]

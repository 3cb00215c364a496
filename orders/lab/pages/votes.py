"""Votes by phone: the audience of a lecture guesses how a race ends, the lecturer's page draws bars."""

from __future__ import annotations

from secrets import token_hex
from typing import Any, Final

from django import forms
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from orders.lab.models import LabEvent, LabRun
from orders.lab.pages.qr import qr_code
from orders.lab.pages.views import MOST_WORDS, may_look, may_run
from orders.pages import page

COOKIE: Final = "holdfast_voter"
"""Tells phones apart; it names no person."""


class QuestionForm(forms.Form):
    """The race that is voted about."""

    buyers = forms.IntegerField(min_value=3, max_value=1000)
    stock = forms.IntegerField(min_value=1, max_value=1000)


def guesses(run: LabRun) -> list[str]:
    """Return what may be voted for: as many as there are, too many, one for each buyer."""
    buyers, stock = run.parameters["buyers"], run.parameters["stock"]
    return [str(stock), f"{stock + 1} – {buyers - 1}", str(buyers)]


@require_POST
@may_run
def start_vote(request: HttpRequest) -> HttpResponse:
    """Open a vote: 201 with its address, as text and as a QR code."""
    form = QuestionForm(request.POST)
    if not form.is_valid():
        return JsonResponse({"message": str(form.errors)}, status=400)
    run = LabRun.objects.create(kind=LabRun.Kind.VOTE, parameters=form.cleaned_data)
    address = request.build_absolute_uri(reverse("lab:vote", args=[run.pk]))
    counts = reverse("lab:vote-counts", args=[run.pk])
    return JsonResponse({"address": address, "qr": qr_code(address), "counts": counts}, status=201)


@never_cache
@require_safe
@may_look
def vote_counts(request: HttpRequest, run_id: str) -> HttpResponse:
    """Count the phones that have voted for each guess; the last vote of a phone counts."""
    run = get_object_or_404(LabRun, pk=run_id, kind=LabRun.Kind.VOTE)
    votes: list[dict[str, Any]] = list(
        run.events.filter(data__has_key="voter").values_list("data", flat=True)
    )
    last = {vote["voter"]: vote["guess"] for vote in votes}.values()
    return JsonResponse({"votes": [list(last).count(number) for number in range(len(guesses(run)))]})


@require_http_methods(["GET", "HEAD", "POST"])
def vote(request: HttpRequest, run_id: str) -> HttpResponse:
    """Show the page of a phone: anyone who has its address has one vote, and may change it."""
    run = get_object_or_404(LabRun, pk=run_id, kind=LabRun.Kind.VOTE)
    voter = request.COOKIES.get(COOKIE, "")[:32] or token_hex(8)
    if request.method == "POST":
        chosen = request.POST.get("guess", "")
        if chosen not in map(str, range(len(guesses(run)))) or run.events.count() >= MOST_WORDS:
            raise Http404
        run.events.create(sender=LabEvent.Sender.VISITOR, data={"voter": voter, "guess": int(chosen)})
        response: HttpResponse = redirect("lab:vote", run.pk)
        response.set_cookie(COOKIE, voter, max_age=86400, httponly=True, samesite="Lax")
        return response
    mine = run.events.filter(data__voter=voter).last()
    context = {"run": run.parameters, "guesses": guesses(run), "mine": mine and mine.data["guess"]}
    return page(request, "lab/vote.html", context)

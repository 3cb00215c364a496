"""The lab over HTTP: the page, the runs, what they say and what is said to them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.forms import Form
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from locking import BackendUnavailable, LockNotAcquired
from orders.lab.models import LabEvent, LabRun
from orders.lab.pages import supervisor
from orders.lab.pages.limits import (
    ALL_SECONDS,
    PAUSE,
    PAUSED_LEASE,
    CommandForm,
    RaceForm,
    StepsForm,
    problems_of,
)
from orders.lab.pages.qr import qr_code
from orders.lab.pages.sources import source
from orders.lab.pages.texts import grouped, strategies
from orders.lab.race.private_redis import program
from orders.lab.strategies import STRATEGIES
from orders.pages import page

_View = Callable[..., HttpResponse]

GONE_AFTER = ALL_SECONDS + 60
MOST_EVENTS = 200
MOST_WORDS = 2000
"""What a visitor may say to one run."""


def requires(permission: str) -> Callable[[_View], _View]:
    """Require a permission, except under DEBUG. The views start processes."""

    def decorate(view: _View) -> _View:
        @wraps(view)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            user = getattr(request, "user", None)  # may be missing: the middleware is the project's choice
            if settings.DEBUG or (user is not None and user.has_perm(permission)):
                return view(request, *args, **kwargs)
            if request.method == "GET" and "text/html" in request.headers.get("Accept", ""):
                return _send_to_login(request, user)
            return _refusal(403, _missing(permission))

        return guarded

    return decorate


def _send_to_login(request: HttpRequest, user: Any) -> HttpResponse:
    if user is not None and user.is_authenticated:
        raise PermissionDenied  # another login is no help: it would only be asked for again
    return redirect_to_login(request.get_full_path(), "admin:login")


def _missing(permission: str) -> str:
    return _(
        "The lab needs the permission %(permission)s: log in with it, or have an administrator grant it."
    ) % {"permission": permission}


may_look = requires("lab.view_labrun")
may_run = requires("lab.add_labrun")


@may_look
def lab_page(request: HttpRequest) -> HttpResponse:
    """Show the lab; the parameters in the address fill the form."""
    wanted = {name: request.GET[name] for name in RaceForm.base_fields if name in request.GET}
    given = RaceForm({**_defaults(), **wanted})
    form = given if given.is_valid() else RaceForm(_defaults())
    shown = strategies()
    context = {
        "form": form,
        "strategies": shown,
        "groups": grouped(shown),
        **_lecture(request),
        "redis_server": bool(program()),
        "pause": PAUSE,
        "lease": PAUSED_LEASE,
        "refused": problems_of(given) if wanted else [],
    }
    return page(request, "lab/lab.html", context)


def _lecture(request: HttpRequest) -> dict[str, Any]:
    """Return the page's address for an audience, as text and as a QR code."""
    if request.GET.get("present") != "1":
        return {}
    address = request.build_absolute_uri(request.path)
    return {"address": address, "qr": qr_code(address)}


def _defaults() -> dict[str, Any]:
    form = RaceForm()
    return {name: field.initial for name, field in form.fields.items()}


@never_cache
@require_safe
@may_look
def source_view(request: HttpRequest, name: str) -> HttpResponse:
    """Return the lines of one strategy."""
    if name not in STRATEGIES:
        raise Http404
    return JsonResponse(source(name))


@require_POST
@may_run
def start_race(request: HttpRequest) -> HttpResponse:
    """Start a race: 202 with its id, 400, 409 while another one runs."""
    return _start(LabRun.Kind.RACE, RaceForm(request.POST))


@require_POST
@may_run
def start_steps(request: HttpRequest) -> HttpResponse:
    """Start a session of steps: 202 with its id, 400, 409 while there are too many."""
    return _start(LabRun.Kind.STEPS, StepsForm(request.POST))


def _start(kind: LabRun.Kind, form: RaceForm | StepsForm) -> HttpResponse:
    if not form.is_valid():
        return _invalid(form)
    try:
        run = supervisor.start(kind, form.cleaned_data)
    except LockNotAcquired:
        return _refusal(409, _running(kind))
    except BackendUnavailable:
        return _refusal(503, _("Redis doesn't answer; nothing runs here without its lock."))
    return JsonResponse({"id": run.pk}, status=202)


def _running(kind: LabRun.Kind) -> str:
    if kind == LabRun.Kind.STEPS:
        return _("Others are stepping already; try again in a minute.")
    running = supervisor.running(kind).first()
    if running is None:
        return _("A race is running; try again in a moment.")
    return _("A race is running, started %(seconds)d s ago; try again in a moment.") % {
        "seconds": running.age.total_seconds()
    }


@never_cache
@require_safe
@may_look
def run_view(request: HttpRequest, run_id: str) -> HttpResponse:
    """Return a run's events since `after`."""
    run = get_object_or_404(LabRun.objects.aged(), pk=run_id)
    after = _number(request.GET.get("after", "0"))
    events = run.events.filter(sender=LabEvent.Sender.RUN, pk__gt=after)
    said = [{"id": event.pk, **event.data} for event in events[:MOST_EVENTS]]
    if not said and not run.ended_at and run.age.total_seconds() > GONE_AFTER:
        said = [{"id": 0, "type": "ended", "why": "died"}]
    return JsonResponse({"id": run.pk, "kind": run.kind, "parameters": run.parameters, "events": said})


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:  # also for more digits than Python reads
        return 0


@require_POST
@may_run
def say(request: HttpRequest, run_id: str) -> HttpResponse:
    """Tell a run what its visitor wants: the next step of A or B, or its end."""
    run = get_object_or_404(LabRun, pk=run_id)
    form = CommandForm(request.POST)
    if not form.is_valid():
        return _refusal(400, " ".join(problems_of(form)))
    if run.ended_at or run.events.filter(sender=LabEvent.Sender.VISITOR).count() >= MOST_WORDS:
        return _refusal(409, _("This run has ended."))
    LabEvent.objects.create(run=run, sender=LabEvent.Sender.VISITOR, data=form.cleaned_data)
    return JsonResponse({}, status=202)


def _invalid(form: Form) -> JsonResponse:
    """Return the errors, and the names of the fields to mark."""
    fields = [name for name in form.errors if name in form.fields]
    return JsonResponse({"message": " ".join(problems_of(form)), "fields": fields}, status=400)


def _refusal(status: int, message: str) -> JsonResponse:
    return JsonResponse({"message": message}, status=status)

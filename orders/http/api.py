"""The JSON interface on django-ninja: how an operation is declared, guarded and described."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.views.decorators.csrf import csrf_exempt
from ninja import NinjaAPI
from ninja.decorators import decorate_view
from ninja.errors import HttpError, ValidationError, ValidationErrorContext

from orders.http import problems
from orders.http.callers import Caller, caller_of
from orders.http.errors import as_seen_by, problem_of
from orders.http.problems import METHOD, NOT_FOUND, PROBLEM_TYPES, Problem, ProblemType
from orders.http.rate_limit import limit_address, write_rates
from orders.http.reading import JsonParser, faulty, faulty_query, require_small_json
from orders.http.responses import JSON, PROBLEM_JSON, respond

Schema = dict[str, Any]
View = TypeVar("View", bound=Callable[..., Any])
Answer = Callable[..., HttpResponse]


class Request(HttpRequest):
    """A request whose sender is known."""

    auth: Caller


class ShopAPI(NinjaAPI):
    """django-ninja, with this shop's words for what is wrong with a request."""

    def get_content_type(self) -> str:
        """Return JSON's media type, which has no charset."""
        return JSON

    def validation_error_from_error_contexts(self, contexts: list[ValidationErrorContext]) -> ValidationError:
        """Raise the problem of a request whose path, address or body is wrong."""
        for context in contexts:
            error, model = context.pydantic_validation_error, context.model
            (name, field), *_ = model.model_fields.items()
            if model.__ninja_param_source__ == "path":
                raise Problem(NOT_FOUND, f"There is no {name} of this id.")
            if model.__ninja_param_source__ == "query":
                raise faulty_query(error.errors(include_url=False), field.annotation or model)
            raise faulty(field.annotation or model, error, skip=1)
        return super().validation_error_from_error_contexts(contexts)


api = ShopAPI(
    title="Holdfast",
    version="1",
    description="A checkout that doesn't oversell. Errors: application/problem+json (RFC 9457). Methods that "
    "an address has not are answered 405, method-not-allowed.",
    openapi_url=None,
    docs_url=None,
    urls_namespace="orders-api",
    parser=JsonParser(),
)


@api.exception_handler(Exception)
@api.exception_handler(HttpError)
def _pass_on(request: HttpRequest, error: Exception) -> HttpResponse:
    """Leave every error to `_served`."""
    raise error


def addresses() -> list[URLPattern]:
    """Return the addresses of all operations."""
    patterns = [each for each in api.urls[0] if isinstance(each, URLPattern) and each.name != "api-root"]
    for pattern in patterns:
        pattern.callback = _served(pattern.callback)
    return patterns


def _served(view: Answer) -> Answer:
    """Answer what goes wrong in `view` as a problem.

    It is exempt from the CSRF token because by itself it reads no cookie: a foreign page has no rights to
    borrow. A view that writes insists on `application/json` besides, or on DELETE, which no form can send and
    for which a browser asks first (CORS); that question is never answered. So the shop page, `curl` and a
    load generator all call the same address in the same way, and a `CALLER` may read a session.
    """

    # ATOMIC_REQUESTS would commit after the strategy has released its lock: the transaction is its own.
    @transaction.non_atomic_requests
    @csrf_exempt
    @wraps(view)
    def answer(request: HttpRequest, **path: Any) -> HttpResponse:
        try:
            response = view(request, **path)
            if response.status_code == METHOD.status:
                allowed = ", ".join(sorted(response.headers["Allow"].split(", ")))
                detail = f"{request.method} is not allowed here; use {allowed}."
                raise Problem(METHOD, detail, headers={"Allow": allowed})
        except Exception as error:
            response = respond(as_seen_by(request, problem_of(error)))
        response.headers["Cache-Control"] = "no-store"
        write_rates(request, response)
        return response

    return answer


# Declaring an operation -------------------------------------------------------------------------------------


def operation(
    method: str,
    path: str,
    summary: str,
    *kinds: ProblemType,
    answer: Any,
    status: int = 200,
    caller: bool = True,
    limited: bool = False,
    address: str = "",
    good: Schema | None = None,
    **described: Any,
) -> Callable[[View], View]:
    """Declare a view as an operation; its name is the operation's id.

    Args:
        method, path, summary: as they are published.
        kinds: the problems that it answers, besides those of its method, and an outage.
        answer, status: type and status of the good answer; None: no body.
        caller: whether `settings.CALLER` says who sends the request; `request.auth` has it.
        limited: whether requests are counted by address.
        address: its name for `reverse`; empty: the view's.
        good: further members of the good answer in the document.
        described: further members of the operation in the document.
    """
    writes = method == "POST"
    listed = [*kinds, problems.UNAVAILABLE]
    if writes:
        listed += [problems.INVALID, problems.TOO_LARGE, problems.MEDIA_TYPE, problems.OUTCOME_UNKNOWN]
    if caller:
        listed.append(problems.UNAUTHORIZED)

    def guard(run: Answer) -> Answer:
        def guarded(request: Request, **path: Any) -> HttpResponse:
            if limited:
                limit_address(request)
            if writes:
                require_small_json(request)
            if caller:
                request.auth = caller_of(request)
            return run(request, **path)

        return guarded

    def declare(view: View) -> View:
        register = api.api_operation(
            ["GET", "HEAD"] if method == "GET" else [method],
            path,
            response={status: answer},
            operation_id=view.__name__,
            url_name=address or view.__name__,
            summary=summary,
            openapi_extra={"responses": {**_answers(listed), status: good or {}}, **described},
        )
        registered: View = decorate_view(guard)(register(view))
        return registered

    return declare


def read_by(read: Callable[[Request], Any]) -> Callable[[View], View]:
    """Have `read` make the view's argument of a request, in place of django-ninja.

    For the view that is asked for most, and for one that needs the body as it was sent.
    """

    def decorate(view: View) -> View:
        def by_hand(run: Answer) -> Answer:
            return lambda request: view(request, read(request))

        decorated: View = decorate_view(by_hand)(view)
        return decorated

    return decorate


# Describing it ----------------------------------------------------------------------------------------------


def _answers(kinds: Iterable[ProblemType]) -> Schema:
    """Return the answers of an operation: for each status those of `kinds` that have it."""
    by_status: dict[int, list[ProblemType]] = {}
    for kind in PROBLEM_TYPES:
        if kind in kinds:
            by_status.setdefault(kind.status.value, []).append(kind)
    return {status: _problem(some) for status, some in by_status.items()}


def _problem(kinds: list[ProblemType]) -> Schema:
    types = {"type": {"enum": [kind.address for kind in kinds]}}
    schema = {"allOf": [{"$ref": "#/components/schemas/Problem"}, {"properties": types}]}
    return {
        "description": " ".join(f"{kind.slug}: {kind.title}." for kind in kinds),
        "content": {PROBLEM_JSON: {"schema": schema}},
    }


def header(name: str, **schema: str) -> Schema:
    """Return an optional header of a request, as the document describes it."""
    return {"name": name, "in": "header", "required": False, "schema": {"type": "string", **schema}}

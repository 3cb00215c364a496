"""The JSON interface on django-ninja: how an operation is declared, guarded and described."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from itertools import groupby
from typing import Any, Final, Never, TypeVar

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.views.decorators.csrf import csrf_exempt
from ninja import NinjaAPI
from ninja.decorators import decorate_view
from ninja.errors import HttpError, ValidationErrorContext

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

    def validation_error_from_error_contexts(self, contexts: list[ValidationErrorContext[Any]]) -> Never:
        """Raise the problem of a request whose path, address or body is wrong."""
        error, source = contexts[0].pydantic_validation_error, contexts[0].model.__ninja_param_source__
        if source == "path":
            raise Problem(NOT_FOUND, f"There is no {error.errors()[0]['loc'][0]} of this id.")
        raise faulty_query(error) if source == "query" else faulty(error, skip=1)


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
    slugs: str,
    answer: Any,
    made: tuple[str, ...] = (),
    caller: bool = True,
    limited: bool = False,
    address: str = "",
    headers: Sequence[Schema] = (),
) -> Callable[[View], View]:
    """Declare a view as an operation; its name is the operation's id, its docstring the summary.

    Args:
        slugs: the problems that it answers, besides those of its method, and an outage.
        answer: type of the good answer; None: no body.
        made: the answer's member that names what was made, and the operations that take it.
        caller: whether `settings.CALLER` says who sends the request; `request.auth` has it.
        limited: whether requests are counted by address.
        address: its name for `reverse`; empty: the view's.
        headers: of the request, as `header` describes them.
    """
    writes = method == "POST"
    listed = {*slugs.split(), "unavailable", *(["unauthorized"] if caller else [])}
    if writes:
        listed |= {"invalid-request", "too-large", "media-type"}
    if method != "GET":
        listed.add("outcome-unknown")
    status = 201 if made else 200 if answer else 204
    responses = _problems(listed) | {status: _made(made)}

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
            tags=[path.split("/")[1]],
            url_name=address or view.__name__,
            summary=view.__doc__,
            openapi_extra={"responses": responses, "parameters": list(headers)},
        )
        return decorate_view(guard)(register(view))

    return declare


def read_by(read: Callable[[Request], Any]) -> Callable[[View], View]:
    """Have `read` make the view's argument of a request, in place of django-ninja.

    For the view that is asked for most, and for one that needs the body as it was sent.
    """

    def decorate(view: View) -> View:
        def by_hand(run: Answer) -> Answer:
            return lambda request: view(request, read(request))

        return decorate_view(by_hand)(view)

    return decorate


# Describing it ----------------------------------------------------------------------------------------------


def _made(made: tuple[str, ...]) -> Schema:
    """Describe where the answer says what was made, and what can be done with that."""
    if not made:
        return {}
    member, what, *operations = made
    parameters = {what: f"$response.body#/{member}"}
    links = {name: {"operationId": name, "parameters": parameters} for name in operations}
    return {"links": links, "headers": {"Location": {"schema": {"type": "string"}}}}


def _problems(slugs: set[str]) -> Schema:
    """Return the answers of an operation: for each status the problems that have it."""
    if unknown := slugs - {kind.slug for kind in PROBLEM_TYPES}:
        raise ValueError(f"problems {sorted(unknown)}: are unknown; orders.http.problems lists them")
    answers: Schema = {}
    kinds = (kind for kind in PROBLEM_TYPES if kind.slug in slugs)
    for status, group in groupby(kinds, lambda kind: kind.status):
        some = list(group)
        schema = {"allOf": [_PROBLEM, {"properties": {"type": one_of(some)}}]}
        answers[status.value] = {
            "description": " ".join(f"{kind.slug}: {kind.title}." for kind in some),
            "content": {PROBLEM_JSON: {"schema": schema}},
        }
    return answers


_PROBLEM: Final[Schema] = {"$ref": "#/components/schemas/Problem"}


def one_of(kinds: Iterable[ProblemType]) -> Schema:
    """Return the schema of a problem's `type`."""
    return {"enum": [kind.address for kind in kinds]}


def header(name: str, **schema: str) -> Schema:
    """Return an optional header of a request, as the document describes it."""
    return {"name": name, "in": "header", "required": False, "schema": {"type": "string", **schema}}

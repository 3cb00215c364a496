"""The document at /openapi.json: OpenAPI 3.1 by django-ninja, of every operation in this room."""

from __future__ import annotations

from functools import cache

from orders.http import operations, webhook
from orders.http.api import Schema, api, one_of
from orders.http.problems import PROBLEM_TYPES

__all__ = ["describe", "operations", "webhook"]


@cache
def describe() -> Schema:
    """Return the OpenAPI document."""
    document: Schema = dict(api.get_openapi_schema(path_prefix=""))
    for operations_ in document["paths"].values():
        operations_.pop("head", None)
        for each in operations_.values():
            del each["description"]  # the docstring, which is the summary
            each["summary"] = each["summary"].replace("`", "")  # plain text, says OpenAPI
    members = {name: {"type": "string"} for name in ("title", "detail")}
    members |= {"type": {"type": "string", **one_of(PROBLEM_TYPES)}, "status": {"type": "integer"}}
    problem = {"type": "object", "properties": members, "required": sorted(members)}
    document["components"]["schemas"]["Problem"] = problem
    key = {"type": "http", "scheme": "bearer", "description": "Where the shop asks for an API key."}
    document["components"]["securitySchemes"] = {"apiKey": key}
    return document | {"security": [{}, {"apiKey": []}]}

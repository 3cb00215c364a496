"""The document at /openapi.json: OpenAPI 3.1 by django-ninja, of every operation in this room."""

from __future__ import annotations

from functools import cache
from typing import Final

from orders.http import operations, webhook
from orders.http.api import Schema, api
from orders.http.problems import PROBLEM_TYPES

__all__ = ["describe", "operations", "webhook"]

_PROBLEM: Final[Schema] = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": [kind.address for kind in PROBLEM_TYPES]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
    "required": ["type", "title", "status", "detail"],
}
_API_KEY: Final[Schema] = {
    "type": "http",
    "scheme": "bearer",
    "description": "Where the shop asks for an API key.",
}


@cache
def describe() -> Schema:
    """Return the OpenAPI document."""
    document: Schema = dict(api.get_openapi_schema(path_prefix=""))
    for operations in document["paths"].values():
        operations.pop("head", None)
    document["components"]["schemas"]["Problem"] = _PROBLEM
    document["components"]["securitySchemes"] = {"apiKey": _API_KEY}
    return document | {"security": [{}, {"apiKey": []}]}

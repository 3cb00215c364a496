"""What every test of the shop over HTTP shares: no problem is answered that the document doesn't list."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.http import HttpRequest

from orders.http import api, errors
from orders.http.openapi import describe
from orders.http.problems import Problem


def slugs(operation: dict[str, Any]) -> Iterator[str]:
    """Yield the problems that an operation of the document lists."""
    for answer in operation["responses"].values():
        if problem := answer["content"].get("application/problem+json") if "content" in answer else None:
            for kind in problem["schema"]["allOf"][1]["properties"]["type"]["enum"]:
                yield kind.removeprefix("/problems/#")


def listed_for(path: str, method: str) -> frozenset[str] | None:
    """Return the problems that the document lists for an operation; None for an address that isn't in it."""
    paths = {re.sub(r"{\w+}", "{}", name): operations for name, operations in describe()["paths"].items()}
    if path not in paths:
        return None
    operation = paths[path].get("get" if method == "HEAD" else method.lower())
    return frozenset(slugs(operation)) if operation else frozenset(["method-not-allowed"])


@pytest.fixture(autouse=True)
def _problems_are_listed(monkeypatch):
    """Fail a test that is answered a problem which the document doesn't list for the operation."""
    as_seen_by = errors.as_seen_by

    def check(request: HttpRequest, problem: Problem) -> Problem:
        seen = as_seen_by(request, problem)
        if request.resolver_match is not None:
            path = "/" + re.sub(r"<[\w:]+>", "{}", request.resolver_match.route).rstrip("/") + "/"
            known = listed_for(path, str(request.method))
            said = f"{seen.kind.slug} is not listed for {request.method} {path}"
            assert known is None or seen.kind.slug in known, said
        return seen

    monkeypatch.setattr(api, "as_seen_by", check)

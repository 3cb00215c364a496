"""The document at /openapi.json and the server agree, whatever is asked."""

from __future__ import annotations

import json

import pytest
import schemathesis
from django.test import Client
from django.utils import translation
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from config.wsgi import application
from orders.http.problems import PROBLEM_TYPES
from tests import ROOT
from tests.factories import OrderFactory, ProductFactory
from tests.orders.shelf import reserved

pytestmark = pytest.mark.django_db(transaction=True)

schema = schemathesis.openapi.from_wsgi("/openapi.json", application)


@schema.parametrize()
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_is_answered_is_what_is_described(case):
    """Generated requests, good and bad: no 500, only listed statuses, and bodies that fit their schemas."""
    case.call_and_validate(
        checks=[
            not_a_server_error,
            status_code_conformance,
            content_type_conformance,
            response_schema_conformance,
        ]
    )


def test_the_document_names_every_problem(client):
    """It is served as JSON, lists every type of problem, and every address in it is answered."""
    document = client.get("/openapi.json").json()
    listed = document["components"]["schemas"]["Problem"]["properties"]["type"]["enum"]
    assert listed == [f"/problems/#{kind.slug}" for kind in PROBLEM_TYPES]
    assert document["openapi"].startswith("3.1")
    for path, operations in document["paths"].items():
        address = path.format(
            order=OrderFactory.create().pk, reservation="00000000-0000-0000-0000-000000000000"
        )
        for operation in operations:
            assert getattr(client, operation)(address).status_code != 405


def test_what_was_made_is_linked_to_what_takes_it(client):
    """Each link of the document is an operation with that parameter, and the answer's member names it."""
    document = client.get("/openapi.json").json()
    taken = {
        operation["operationId"]: {parameter["name"] for parameter in operation["parameters"]}
        for operations in document["paths"].values()
        for operation in operations.values()
    }
    ProductFactory.create(sku="mug")
    body = json.dumps({"lines": [{"sku": "mug", "quantity": 1}]})
    for address, count in (("/checkout/", 3), ("/reservations/", 3)):
        made = client.post(address, body, content_type="application/json").json()
        links = document["paths"][address]["post"]["responses"]["201"]["links"]
        assert len(links) == count
        for link in links.values():
            ((name, value),) = link["parameters"].items()
            assert name in taken[link["operationId"]]
            assert made[value.removeprefix("$response.body#/")]


def test_real_answers_fit_the_document(client: Client):
    """An order placed, shown, paid; a reservation made; products listed: each as its schema says."""
    import jsonschema_rs

    document = client.get("/openapi.json").json()
    ProductFactory.create(sku="mug")
    lines = {"lines": [{"sku": "mug", "quantity": 1}]}

    def post(address: str, body: object):
        return client.post(address, json.dumps(body), content_type="application/json").json()

    order = post("/checkout/", {**lines, "customer": "ann"})
    answers = {
        "Order": [
            order,
            client.get(f"/orders/{order['id']}/").json(),
            post(f"/orders/{order['id']}/pay/", {}),
        ],
        "Reservation": [post("/reservations/", lines)],
        "Products": [client.get("/products/").json()],
        "Problem": [post("/checkout/", {"lines": []})],
    }
    for name, values in answers.items():
        checker = jsonschema_rs.validator_for({**document, "$ref": f"#/components/schemas/{name}"})
        for value in values:
            checker.validate(value)
    assert reserved() == 1


def texts_of(part):
    """Yield every summary and description of the document; marked up is only their end."""
    for value in part.values() if isinstance(part, dict) else part:
        if isinstance(value, (dict, list)):
            yield from texts_of(value)
    shown = (part.get(name) for name in ("summary", "description")) if isinstance(part, dict) else ()
    yield from (text.split("`")[0].strip() for text in shown if isinstance(text, str))


def test_the_page_of_the_interface_is_in_chinese_too(client):
    """Each text of the document has its Chinese, a problem the one of its own page, and nothing else has."""
    texts = json.loads((ROOT / "orders/static/orders/docs.zh-hans.json").read_text())
    document = client.get("/openapi.json").json()
    del document["info"]  # the page names what it is itself
    found = set(texts_of(document))
    listed = [kind for kind in PROBLEM_TYPES if any(f"{kind.slug}: {kind.title}." in text for text in found)]
    with translation.override("zh-hans"):
        assert texts["problems"] == {kind.title: translation.gettext(kind.title) for kind in listed}
    problems = tuple(f"{kind.slug}: " for kind in listed)
    assert set(texts["document"]) == {text for text in found if not text.startswith(problems)}

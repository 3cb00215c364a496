"""The dashboard and the alert rules: well formed, and about metrics that there are."""

import json
import re

import pytest
import yaml
from prometheus_client import CollectorRegistry

from locking.contrib.prometheus import Meter
from tests import ROOT

OPS = ROOT / "ops"
METRIC = re.compile(r"\blocking_\w+")
LABELS = re.compile(r"\{([^{}]*)\}")
KNOWN_LABELS = {"backend", "lock", "outcome", "le"}


@pytest.fixture(scope="module")
def exported():
    """The names of all series that the exporter makes."""
    registry = CollectorRegistry()
    meter = Meter(registry=registry)
    series = meter.series("default", "a", None)
    series.granted.inc()
    meter.renewed("default", "renewed", 1)
    return {sample.name for metric in registry.collect() for sample in metric.samples}


@pytest.fixture(scope="module")
def dashboard():
    """The dashboard as Grafana reads it."""
    return json.loads((OPS / "grafana" / "holdfast.json").read_text())


@pytest.fixture(scope="module")
def rules():
    """The rules as Prometheus reads them."""
    (group,) = yaml.safe_load((OPS / "prometheus" / "alerts.yml").read_text())["groups"]
    return group["rules"]


def expressions_of(dashboard):
    """Every query of a dashboard's panels."""
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def base_names(series):
    """The metrics behind series: a histogram has three of them."""
    return {
        re.sub(r"_(bucket|sum|count|total)$", "", name) for name in series if not name.endswith("_created")
    }


def test_the_dashboard_shows_every_metric_and_no_other(dashboard, exported):
    """A panel for each; a query for a metric that isn't exported would stay empty forever."""
    asked = set(METRIC.findall(" ".join(expressions_of(dashboard))))
    assert asked <= exported
    assert base_names(asked) == base_names(exported)


def test_the_panels_of_the_dashboard_have_their_own_places(dashboard):
    """No two have one id, and none lies upon another."""
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    cells = [
        (column, row)
        for place in (panel["gridPos"] for panel in panels)
        for column in range(place["x"], place["x"] + place["w"])
        for row in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert all(0 <= column < 24 for column, _ in cells)


def test_the_rules_are_about_metrics_that_are_exported(rules, exported):
    """Each has a name of its own, a severity, and words for anyone who is woken."""
    assert {name for rule in rules for name in METRIC.findall(rule["expr"])} <= exported
    assert len({rule["alert"] for rule in rules}) == len(rules)
    assert all(rule["labels"]["severity"] in ("info", "warning", "critical") for rule in rules)
    assert all(set(rule["annotations"]) == {"summary", "description"} for rule in rules)


def test_queries_ask_for_labels_that_there_are(rules, dashboard):
    """And their brackets pair up."""
    for expression in [rule["expr"] for rule in rules] + expressions_of(dashboard):
        assert expression.count("(") == expression.count(")")
        asked = {
            label for inside in LABELS.findall(expression) for label in re.findall(r"(\w+)\s*[=!]", inside)
        }
        grouped = {word.strip() for by in re.findall(r"by \(([^)]*)\)", expression) for word in by.split(",")}
        assert asked | grouped <= KNOWN_LABELS

"""The demo project's page of metrics: there when it is asked for, and not otherwise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

ASK = """
import django
django.setup()
from django.test import Client
from locking import get_lock
with get_lock("order:1", template="order:<id>", backend="memory"):
    answer = Client().get("/metrics")
print(answer.status_code, 'locking_held{backend="memory",lock="order:<id>"} 1.0' in answer.content.decode())
"""

SETTINGS = """
from tests.settings import *
ALLOWED_HOSTS = ["testserver"]
LOCKING["memory"] = {"BACKEND": "locking.backends.memory.MemoryBackend"}
"""


@pytest.mark.parametrize(("metrics", "answer"), [("true", "200 True"), ("false", "404 False")])
def test_metrics_are_there_when_they_are_asked_for(tmp_path, metrics, answer):
    """By METRICS=true: the page is for machines, not for the public."""
    (tmp_path / "metered.py").write_text(SETTINGS)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    wanted = {"METRICS": metrics, "DJANGO_SETTINGS_MODULE": "metered", "PYTHONPATH": path}
    command = [sys.executable, "-c", ASK]
    said = subprocess.check_output(command, cwd=ROOT, env=os.environ | wanted, text=True)
    assert said.strip() == answer

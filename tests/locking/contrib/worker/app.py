"""The Celery application of a real worker; its tasks are loaded when Django is ready."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

app = Celery(
    "tests.locking.contrib.worker",
    broker=os.environ.get("TEST_BROKER", "memory://"),
    include=["tests.locking.contrib.worker.tasks"],
    set_as_current=False,
)
app.conf.update(
    broker_transport_options={
        "visibility_timeout": float(os.environ.get("TEST_VISIBILITY", 3600)),
        "unacked_restore_interval": 0.5,
        "unacked_restore_throttle": 1,
    },
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    worker_hijack_root_logger=False,
)

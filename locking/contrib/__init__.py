"""What connects locks with other packages: task queues, metrics, tracing, health checks."""

from locking.transactions import tasks
from locking.transactions.tasks import FindTask


def register_task_queues() -> None:
    """Register what knows the running task of each task queue; Celery is imported where it is in use."""
    tasks.ADAPTERS["celery"] = _celery


def _celery() -> FindTask:
    from locking.contrib.celery import running_task

    return running_task

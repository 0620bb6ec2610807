"""The Celery application of a worker, with one task whose argument is the id of a task run."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from app.platform import broker
from workers.requests import NoticingRequest

if TYPE_CHECKING:
    from celery import Celery

    from app.platform.settings import Settings
    from workers.runtime import Runtime


# Time in seconds between the soft time limit (an exception inside the analysis) and the kill, for
# storing the reason.
GRACE_S: Final = 30

# On a loaded machine, a forked child that compiles the planner's loops can take this time in
# seconds to report that it is ready; with Celery's limit of 4 s it would be killed and forked again
# endlessly.
CHILD_START_S: Final = 240.0

# Time in seconds in which Celery waits for the result of a killed process, whose message is
# unavailable meanwhile. Short, because our results are in the database.
LOST_WAIT_S: Final = 1.0


def make_celery(settings: Settings, runtime: Runtime) -> Celery:
    """Return the Celery application whose task runs in `runtime`.

    Parameters
    ----------
    runtime : Runtime
        State of the process that runs tasks; its contents are built in this process only.
    """
    celery = broker.make_celery(settings)
    celery.conf.update(
        task_soft_time_limit=settings.analysis_time_limit_s,
        task_time_limit=settings.analysis_time_limit_s + GRACE_S,
        # Checked after each task: a child that uses more memory is replaced by a new child.
        worker_max_memory_per_child=settings.analysis_memory_limit_kib,
        worker_proc_alive_timeout=CHILD_START_S,
        worker_lost_wait=LOST_WAIT_S,
        # A task is held by its lease in the database, not by the connection to the broker.
        worker_cancel_long_running_tasks_on_connection_loss=False,
    )

    @celery.task(name=broker.TASK_NAME, Request=NoticingRequest)
    def run(run_id: str) -> None:
        runtime.execute(uuid.UUID(run_id))

    return celery

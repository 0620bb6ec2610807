"""A worker without a broker: ``python -m workers.pull --queue analysis``, until SIGTERM.

`app.run.workers` starts it while the broker is unavailable. It is a separate process, like the
children of the other workers, so that a crash or unreturned memory affects no other work.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Final

from app.platform import processes as child
from workers.child import SINGLE_THREADED

if TYPE_CHECKING:
    from types import FrameType

    from app.platform.settings import Settings
    from workers.runtime import Runtime


# Interval in seconds at which the database is queried for waiting tasks.
POLL_S: Final = 1.0


def pull_all(settings: Settings, queue: str) -> None:
    """Run the tasks of a queue one at a time; SIGTERM returns the running task to the queue.

    Call it in the main thread: the time limit is an alarm.
    """
    import structlog  # noqa: PLC0415 - as below
    from celery.exceptions import SoftTimeLimitExceeded  # noqa: PLC0415 - as below
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415

    from app.platform.broker import ANALYSIS_QUEUE  # noqa: PLC0415
    from app.platform.database.engine import said  # noqa: PLC0415
    from app.platform.tasks.runs import next_runs  # noqa: PLC0415
    from workers.runtime import Runtime  # noqa: PLC0415

    def over(_signum: int, _frame: FrameType | None) -> None:
        raise SoftTimeLimitExceeded

    runtime = Runtime(settings, queue)
    container, keeper = runtime.start()

    def stop(_signum: int, _frame: FrameType | None) -> None:
        threading.Thread(target=_end, args=(runtime,), name="paceline-stop").start()

    signal.signal(signal.SIGTERM, stop)
    if queue == ANALYSIS_QUEUE:
        signal.signal(signal.SIGALRM, over)
    while not keeper.stopping:
        try:
            runs = next_runs(container, queue)
        except SQLAlchemyError as error:
            structlog.get_logger(__name__).warning("no work found", error=said(error))
            runs = []
        if not runs:
            time.sleep(POLL_S)
        for run_id in runs:
            signal.alarm(settings.analysis_time_limit_s if queue == ANALYSIS_QUEUE else 0)
            try:
                runtime.execute(run_id)
            finally:
                signal.alarm(0)
    runtime.stop()


def _end(runtime: Runtime) -> None:
    """Return the running task to the queue and exit, as the main thread may be inside NumPy."""
    runtime.stop()
    os._exit(0)


def main() -> int:
    """Work on a queue until SIGTERM; the configuration comes from the environment."""
    os.environ.update(dict.fromkeys(SINGLE_THREADED, "1"))
    from app.platform.resources import loading  # noqa: PLC0415 - importing numpy starts its threads

    with loading():
        from app.platform.broker import QUEUES  # noqa: PLC0415
        from app.platform.logs import configure_logging  # noqa: PLC0415
        from app.platform.settings import Settings  # noqa: PLC0415

    parser = child.options("workers.pull", __doc__)
    parser.add_argument("--queue", choices=QUEUES, required=True)
    arguments = child.asked(parser)
    settings = Settings()
    configure_logging(json=settings.log_json, level=settings.log_level)
    pull_all(settings, arguments.queue)
    return 0


if __name__ == "__main__":
    child.run(main)

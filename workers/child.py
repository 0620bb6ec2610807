"""The process of one worker: ``python -m workers.child --queue analysis``."""

from __future__ import annotations

import os
import sys
from typing import Final

from app.platform import processes as child

# Each library has its own pool of threads, one per core, whose size it reads from these variables
# when it is loaded. Threads do not make an analysis faster, and two workers on a machine would
# compete for its cores.
SINGLE_THREADED: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


def main() -> int:
    """Work on a queue until SIGTERM; the configuration comes from the environment."""
    os.environ.update(dict.fromkeys(SINGLE_THREADED, "1"))
    # A worker prints no results, and Celery's output there is not in the format of the log.
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)

    from app.platform.resources import loading  # noqa: PLC0415 - see below

    # Only after the variables are set, because importing numpy starts its threads.
    with loading():
        from app.platform.broker import QUEUES  # noqa: PLC0415
        from app.platform.logs import configure_logging  # noqa: PLC0415
        from app.platform.settings import Settings  # noqa: PLC0415
        from workers.runner import run_worker  # noqa: PLC0415

    parser = child.options("workers.child", __doc__)
    parser.add_argument("--queue", choices=QUEUES, required=True)
    parser.add_argument("--concurrency", type=int)
    arguments = child.asked(parser)
    settings = Settings()
    configure_logging(json=settings.log_json, level=settings.log_level)
    return run_worker(settings, arguments.queue, concurrency=arguments.concurrency)


if __name__ == "__main__":
    child.run(main)

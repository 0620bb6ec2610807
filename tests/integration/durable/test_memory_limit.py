"""An analysis that does not fit into memory is tried once more, and then says what it needs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes
from tests.support.sessions import count_reports, session_row, store, task_row

if TYPE_CHECKING:
    from app.bootstrap import Container
    from tests.support.sessions import Stored

# As a worker does it; the second argument is its memory, MiB.
_WORK = """
import sys
from app.analysis.warm_up import warm_up
from app.settings import Settings
from tests.support.project import build
from app.services.tasks.execute import execute
from app.services.tasks.leases import LeaseKeeper
from uuid import UUID
limit_kib = int(sys.argv[2]) * 1024
container = build(Settings().model_copy(update={"analysis_memory_limit_kib": limit_kib}))
warm_up()
execute(container, LeaseKeeper(container), UUID(sys.argv[1]))
"""


def work(container: Container, stored: Stored, mib: int) -> None:
    """Let a worker with so much memory do the analysis."""
    subprocess.run(  # noqa: S603 - our own script
        [sys.executable, "-c", _WORK, str(stored.run), str(mib)],
        env=container.settings.environment_of_child(os.environ),
        check=True,
    )


def test_an_analysis_over_the_limit_is_tried_again_and_then_says_what_it_needs(
    container: Container,
) -> None:
    job = JobModel(Sizes(dp=32, pp=8), microbatches=24, steps=12)
    stored = store(container, synthesize(job, seed=1).trace)
    work(container, stored, 10)
    assert session_row(container, stored).state == "queued"
    work(container, stored, 10)
    row = session_row(container, stored)
    assert (row.state, row.reason_code) == ("failed", "task.memory_limit")
    said = re.search(
        r"it needs about (\d+) GiB: set PACELINE_ANALYSIS_MEMORY_LIMIT_KIB to (\d+)",
        str(row.reason),
    )
    assert said is not None
    assert int(said[2]) == int(said[1]) << 20
    assert task_row(container, stored).attempt == 2
    assert count_reports(container) == 0


def test_a_worker_with_more_memory_takes_over(container: Container) -> None:
    job = JobModel(Sizes(dp=32, pp=8), microbatches=24, steps=12)
    stored = store(container, synthesize(job, seed=1).trace)
    work(container, stored, 10)
    work(container, stored, 4096)
    assert session_row(container, stored).state == "analyzed"

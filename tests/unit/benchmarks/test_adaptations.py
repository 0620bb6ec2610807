"""No adaptation is made in jobs that do not need it; nightly runs test a thousand others."""

from __future__ import annotations

import pytest

from app.analysis.replay.adaptations.kind import Name
from app.analysis.synthesis.random_sessions import CAUSES
from benchmarks.adaptations import Adapted, adapted_job, lines

FIRST_SEED = 1
JOBS = 60


@pytest.mark.slow
def test_nothing_fires_on_random_jobs_that_do_not_call_for_it() -> None:
    jobs = [adapted_job(seed) for seed in range(FIRST_SEED, FIRST_SEED + JOBS)]
    assert [job for job in jobs if job.uncalled] == []
    # The check detects an adaptation that is made.
    assert any(job.made for job in jobs)


@pytest.mark.parametrize("seed", [13, 1008, 1243])
def test_steps_that_wait_for_data_are_not_taken_for_gathering_first(seed: int) -> None:
    assert adapted_job(seed, only="data_loading").made == ()


def test_the_table_has_every_cause_and_counts_needless_adaptations() -> None:
    jobs = [
        Adapted(1, "none", ()),
        Adapted(2, "host_overhead", (Name.REGULAR_DELAYS,)),
        Adapted(3, "network", (Name.REGULAR_DELAYS,)),
    ]
    table = list(lines(jobs))
    assert "| none | 1 | none |" in table
    assert "| host_overhead | 1 | `regular_delays` 1 |" in table
    assert sum(line.startswith("|") for line in table) == 3 + len(CAUSES)
    assert table[-1] == "3 jobs: adaptations that are not called for on 1"

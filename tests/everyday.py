"""The tests that `make test` runs every day; `make test-all` runs the others too.

In `tests/unit` and `tests/golden` these are all tests that are not marked `slow`. Other tests start
servers, processes and browsers; only the first test of each file runs every day, even if it is
marked `slow`: write the plain case first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pytest

# Folders whose tests are cheap.
ALL_OF_FILE: Final = ("tests/unit/", "tests/golden/")

# Not daily: soaks, benchmarks, builds of sites and demos, random bodies for every route, every
# cause on every page, and long trainings with PyTorch.
NONE: Final = (
    "tests/e2e/test_demo.py",
    "tests/e2e/test_documentation.py",
    "tests/e2e/test_times.py",
    "tests/integration/actions/test_remedies.py",
    "tests/integration/incidents/test_command.py",
    "tests/integration/incidents/test_soak.py",
    "tests/integration/api/web/test_requests.py",
    "tests/integration/client/test_attempts.py",
    "tests/integration/client/test_examples.py",
    "tests/integration/client/test_loop.py",
    "tests/integration/client/test_probe.py",
    "tests/integration/cli/",
    "tests/integration/installation/test_telemetry.py",
    "tests/integration/platform/test_side_by_side.py",
    "tests/integration/retention/test_killed.py",
    "tests/integration/test_demo_apart.py",
    "tests/integration/test_ingest_benchmark.py",
    "tests/integration/test_two_processes.py",
    "tests/integration/test_worker_without_database.py",
    "tests/tensor/",
)

# Also daily. Of the real jobs: one written by hand, one of PyTorch, and one of Megatron that the
# client's hooks record.
REAL_JOBS: Final = "tests/real_jobs/test_real_jobs.py::test_"
AS_WELL: Final = (
    f"{REAL_JOBS}verdict_headline_cause_and_worker_are_those_of_the_job[tpF-slow1.8]",
    f"{REAL_JOBS}the_hooks_of_the_client_tell_the_same[mcO-slow1.8]",
)


def every_day(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield those of the collected tests that run every day."""
    seen = set()
    for item in items:
        file = item.nodeid.partition("::")[0]
        if file.startswith(ALL_OF_FILE):
            left_out = item.get_closest_marker("slow") is not None
        else:
            left_out = file in seen or file.startswith(NONE)
        seen.add(file)
        if not left_out or item.nodeid in AS_WELL:
            yield item

"""Which tests run every day, with `make test`; `make test-all` runs the others as well.

A test that is named nowhere here runs every day, with the first of its parameters, unless it is
marked `slow`. Variants of units run every day, too. Where a file starts processes or browsers for
each of its tests, only the first one runs every day: write the plain case first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pytest

# With all of their parameters: they are cheap.
ALL_VARIANTS: Final = ("tests/unit/", "tests/golden/")

# Only the first test of each of these files, `slow` or not.
FIRST_OF_FILE: Final = (
    *("tests/e2e/", "tests/fuzz/", "tests/referee/", "tests/real_jobs/"),
    *("tests/integration/client/", "tests/integration/db/embedded/", "tests/integration/test_"),
    "tests/integration/access/test_guesses.py",
    "tests/integration/actions/",
    "tests/integration/alerts/test_command.py",
    "tests/integration/dashboard/test_reads.py",
    "tests/integration/durable/test_database_restart.py",
    "tests/integration/durable/test_memory_limit.py",
    "tests/integration/durable/test_workers.py",
    "tests/integration/retention/test_backup.py",
    "tests/integration/retention/test_killed.py",
    "tests/integration/plans/test_workers.py",
    "tests/integration/store/test_processes.py",
)

# None of these: a soak, a benchmark, a site of documentation that is built, the demo's two weeks,
# the demo next to an installation, ranks of PyTorch, an example and a training of a minute.
NONE: Final = (
    "tests/e2e/test_demo.py",
    "tests/e2e/test_documentation.py",
    "tests/integration/alerts/test_soak.py",
    "tests/integration/client/test_examples.py",
    "tests/integration/client/test_loop.py",
    "tests/integration/test_demo_apart.py",
    "tests/integration/test_ingest_benchmark.py",
    "tests/tensor/",
)

# These as well. Of the real jobs one that is written by hand, one of PyTorch, and one of Megatron,
# which the client's hooks record.
REAL_JOBS: Final = "tests/real_jobs/test_real_jobs.py::test_"
AS_WELL: Final = (
    f"{REAL_JOBS}verdict_headline_cause_and_worker_are_those_of_the_job[tpF-slow1.8]",
    f"{REAL_JOBS}the_hooks_of_the_client_tell_the_same[mcO-slow1.8]",
)


def every_day(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield those of the collected tests that run every day."""
    seen = set()
    for item in items:
        file, _, test = item.nodeid.partition("::")
        first_of_file = file.startswith(FIRST_OF_FILE)
        if first_of_file:
            kind = file
        elif file.startswith(ALL_VARIANTS):
            kind = item.nodeid
        else:
            kind = f"{file}::{test.partition('[')[0]}"
        left_out = (
            kind in seen
            or file.startswith(NONE)
            or (item.get_closest_marker("slow") is not None and not first_of_file)
        )
        seen.add(kind)
        if not left_out or item.nodeid in AS_WELL:
            yield item

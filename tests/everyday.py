"""Which tests run every day, with `make test`; `make test-all` runs the others as well.

The rule for a test without any entry here: in a folder of `WHOLE` it runs every day, unless it is
marked `slow`. Elsewhere tests start servers, browsers and processes, and only the first one of each
file runs every day, with the first of its parameters. So write the plain case first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pytest

# Every test that is not `slow`.
WHOLE: Final = ("tests/unit/", "tests/golden/")

# None of these: a soak, a benchmark, a site of documentation that is built, ranks of PyTorch, and
# command lines that are processes.
NONE: Final = (
    "tests/e2e/test_documentation.py",
    "tests/integration/alerts/test_command.py",
    "tests/integration/alerts/test_soak.py",
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
        file = item.nodeid.partition("::")[0]
        if item.nodeid in AS_WELL:
            yield item
        elif item.get_closest_marker("slow") or file.startswith(NONE):
            continue
        elif file.startswith(WHOLE) or file not in seen:
            seen.add(file)
            yield item

"""A right verdict on the structure of every tutorial, healthy and with a slow rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.conftest import skip_or_fail
from tests.support.extras import of_real_jobs
from tests.support.nightly import BY_NIGHT

of_real_jobs("torch")

from tests.real_jobs.running import AT_ONCE  # noqa: E402
from tests.real_jobs.tutorials import TUTORIALS, Tutorial, faults_of, run  # noqa: E402

# One retry is allowed if the machine's healthy steps differ by more than a headline may.
ATTEMPTS = 4
# Tutorials that run at night only, because loading them takes as long as three of the others.
SLOWEST = "deepspeed"


@pytest.fixture(scope="module")
def wrong(request: pytest.FixtureRequest) -> Iterator[Mapping[str, Future[list[str]]]]:
    """Run the tutorials whose tests were selected, and yield the faults of each."""
    names = [
        name
        for name in TUTORIALS
        if any(item.name.endswith(f"[{name}]") for item in request.session.items)
    ]
    with ThreadPoolExecutor(AT_ONCE) as lanes:
        yield {
            name: lanes.submit(_wrong, TUTORIALS[name])
            for name in names
            if TUTORIALS[name].missing is None
        }
        lanes.shutdown(cancel_futures=True)


def _wrong(tutorial: Tutorial) -> list[str]:
    wrong: list[str] = []
    for _ in range(ATTEMPTS):
        told = run(tutorial)
        wrong = faults_of(tutorial, told)
        if not wrong or not told.noisy:
            break
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TUTORIALS if BY_NIGHT or name != SLOWEST])
def test_verdict_cause_rank_and_headline_are_those_of_the_job(
    name: str, wrong: Mapping[str, Future[list[str]]]
) -> None:
    missing = TUTORIALS[name].missing
    if missing is not None:
        skip_or_fail(f"{missing} is not installed")
    assert not wrong[name].result()

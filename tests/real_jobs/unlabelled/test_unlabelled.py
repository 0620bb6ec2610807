"""Answers to jobs without labels that PyTorch's profiler recorded in this run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conftest import skip_or_fail
from tests.real_jobs.jobs import Framework
from tests.real_jobs.launching import missing
from tests.real_jobs.unlabelled.jobs import TROUBLES, Kind, Trouble
from tests.real_jobs.unlabelled.judging import NOISY, faults_of
from tests.real_jobs.unlabelled.launching import Recording, launch

# One retry is allowed if the machine's healthy steps differ by more than a headline may.
ATTEMPTS = 3
# Smallest slowdown of a job that is slowed on purpose.
SLOWED = 1.1
NAMES = [
    f"{kind.value}-{trouble.value}"
    for kind, troubles in TROUBLES.items()
    for trouble in (Trouble.NONE, *troubles)
]

pytestmark = pytest.mark.slow


def kind_of(name: str) -> Kind:
    return Kind(name.partition("-")[0])


@pytest.fixture(scope="module")
def recorded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Recording]:
    """Return the recordings of the kinds whose tests were selected, by name."""
    reason = missing(Framework.TORCH)
    if reason is not None:
        skip_or_fail(reason)
    tests = [item.name for item in request.session.items]
    kinds = [kind for kind in Kind if any(f"[{kind.value}-" in test for test in tests)]
    return launch(kinds, tmp_path_factory.mktemp("unlabelled"))


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("-none")])
def test_a_job_is_as_slow_as_it_is_made(name: str, recorded: Mapping[str, Recording]) -> None:
    assert recorded[name].slowdown > SLOWED


@pytest.mark.parametrize("name", NAMES)
def test_nothing_in_a_file_says_which_operation_is_which(
    name: str, recorded: Mapping[str, Recording]
) -> None:
    for path in recorded[name].files:
        text = path.read_text()
        assert '"PP:' not in text
        assert "paceline:" not in text
        assert '"ProfilerStep#' in text


@pytest.mark.parametrize("name", NAMES)
def test_slowdown_cause_and_rank_are_those_of_the_job(
    name: str, recorded: Mapping[str, Recording], tmp_path: Path
) -> None:
    recording = recorded[name]
    wrong = faults_of(recording)
    for attempt in range(1, ATTEMPTS):
        if not wrong or recording.noise <= NOISY or wrong[0].startswith("refused"):
            break
        recording = launch([kind_of(name)], tmp_path / str(attempt))[name]
        wrong = faults_of(recording)
    assert not wrong

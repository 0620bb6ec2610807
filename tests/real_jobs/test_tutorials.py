"""A right verdict in the structure of every tutorial, healthy and with a rank that is slowed."""

from __future__ import annotations

import pytest

from tests.conftest import skip_or_fail
from tests.real_jobs.tutorials import TUTORIALS, faults_of, run

# On a machine whose healthy steps differ by more than a headline may, one more look is fair.
ATTEMPTS = 3


@pytest.mark.slow
@pytest.mark.parametrize("name", TUTORIALS)
def test_verdict_cause_rank_and_headline_are_those_of_the_job(name: str) -> None:
    tutorial = TUTORIALS[name]
    if tutorial.missing is not None:
        skip_or_fail(f"{tutorial.missing} is not installed")
    for _ in range(ATTEMPTS):
        told = run(tutorial)
        wrong = faults_of(tutorial, told)
        if not wrong or not told.noisy:
            break
    assert not wrong

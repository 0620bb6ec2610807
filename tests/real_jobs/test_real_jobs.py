"""Real training jobs, slowed down on purpose, and what the product says of their recordings."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.real_jobs.judging import Judged
from tests.real_jobs.scenarios import REPRESENTATIVE


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_verdict_headline_cause_and_worker_are_those_of_the_job(
    name: str, told: Mapping[str, Judged]
) -> None:
    assert not told[name].wrong

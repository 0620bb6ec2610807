"""Real training jobs, slowed down on purpose, and what the product says of their recordings."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.real_jobs.judging import Judged
from tests.real_jobs.scenarios import HOOKED, REPRESENTATIVE


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_verdict_headline_cause_and_worker_are_those_of_the_job(
    name: str, told: Mapping[str, Judged]
) -> None:
    assert not told[name].wrong


@pytest.mark.parametrize("name", HOOKED)
def test_the_hooks_of_the_client_tell_the_same(
    name: str, told_by_hooks: Mapping[str, Judged]
) -> None:
    assert not told_by_hooks[name].wrong

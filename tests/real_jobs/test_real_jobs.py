"""Real training jobs, slowed down on purpose, and what the product says of their recordings."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.real_jobs.comparing import Pair
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


@pytest.mark.parametrize("name", [name for name in HOOKED if name in REPRESENTATIVE])
def test_the_hooks_say_what_instrumentation_by_hand_says(
    name: str, told: Mapping[str, Judged], told_by_hooks: Mapping[str, Judged]
) -> None:
    assert not Pair(told[name], told_by_hooks[name]).differences

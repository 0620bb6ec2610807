"""Real training jobs, slowed down on purpose, and the product's answers to their recordings."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from app.analysis.replay.adaptations.kind import Name
from tests.real_jobs.analyzing import answer
from tests.real_jobs.comparing import Pair
from tests.real_jobs.judging import Judged, faults_of
from tests.real_jobs.scenarios import HOOKED, NEEDS, REPRESENTATIVE

# Minimum increase of the discrepancy without an adaptation, after which a healthy job may still be
# judged right.
WORSE = 0.01


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
def test_hooks_and_instrumentation_by_hand_agree(
    name: str, told: Mapping[str, Judged], told_by_hooks: Mapping[str, Judged]
) -> None:
    assert not Pair(told[name], told_by_hooks[name]).differences


@pytest.mark.parametrize("name", NEEDS)
def test_a_job_without_a_needed_adaptation_gets_a_wrong_result(
    name: str, told: Mapping[str, Judged]
) -> None:
    judged = told[name]
    assert judged.truth is not None
    for needed in NEEDS[name]:
        without = answer(judged.recording, {needed})
        worse = without.discrepancy - judged.answer.discrepancy > WORSE
        assert worse or faults_of(without, judged.truth), needed


@pytest.mark.parametrize("name", ["mcV-slow1.3"])
def test_transfers_that_fit_no_neighbor_are_left_out_so_that_results_are_right(
    name: str, told: Mapping[str, Judged]
) -> None:
    judged = told[name]
    assert judged.truth is not None
    idle = {Name.IDLE_TRANSFERS}
    left_out = answer(judged.recording, idle)
    # Usually there is no dependency graph at all; by chance idle transfers may pair up.
    kept = answer(judged.recording, idle | {Name.UNMATCHED_TRANSFERS})

    assert left_out.refused is None
    assert left_out.causes[0].name == "slow_worker"
    assert faults_of(kept, judged.truth)

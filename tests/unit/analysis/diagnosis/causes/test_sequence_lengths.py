from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.diagnosis.causes.sequence_lengths import SEQUENCE_LENGTHS
from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.injections.computations import SequenceLengths
from app.analysis.synthesis.job import JobModel, Profiler
from tests.unit.analysis.diagnosis.jobs import (
    JOB,
    ONE_RANK,
    ONE_STAGE,
    check_named_alone,
    diagnosed,
    evidence,
    found,
    session,
    signs_of,
)


@pytest.mark.parametrize(
    ("injection", "job"),
    [
        (SequenceLengths(), JOB),
        (SequenceLengths(), ONE_STAGE),
        (SequenceLengths(), ONE_RANK),
    ],
)
def test_it_is_named_alone_with_its_place_and_most_of_the_lost_time(
    injection: Injection, job: JobModel
) -> None:
    check_named_alone(injection, job)


def test_nothing_is_found_in_a_healthy_job() -> None:
    assert SEQUENCE_LENGTHS.find(signs_of(session())) is None


def test_even_microbatches_take_the_same_time_on_all_dp_ranks() -> None:
    signs = signs_of(session(SequenceLengths()))
    finding = found(SEQUENCE_LENGTHS, signs)

    observation = signs.observation
    for nodes in observation.passes["backward-compute"].nodes:
        factors = np.stack([finding.change.times[node] for node in nodes.tolist()])
        times = observation.recorded_ns[nodes] * factors
        assert times.std() / times.mean() < 0.05
        assert times.mean() == pytest.approx(observation.recorded_ns[nodes].mean(), rel=0.05)


def test_recorded_sequence_lengths_are_held_against_the_times() -> None:
    job = replace(JOB, profiler=Profiler(sequence_lengths=True))

    assert "follow Σs²" in evidence(diagnosed(session(SequenceLengths(), job=job)))
    assert "follow Σs²" not in evidence(diagnosed(session(SequenceLengths())))


@pytest.mark.parametrize(
    "lane",
    [
        7,
        "a text as long",
        {"0": [512]},
        [512] * 8,
        [None] * 8,
        [["512"]] * 8,
        [[True]] * 8,
        [[-512]] * 8,
        [[float("nan")]] * 8,
        [[10**200]] * 8,
    ],
    ids=str,
)
def test_what_is_no_list_of_sequence_lengths_is_left_alone(lane: object) -> None:
    trace = session(SequenceLengths()).trace
    recorded = {str(step): [lane] * JOB.sizes.dp for step in np.unique(trace.step).tolist()}
    report = analyze(
        replace(trace, meta=replace(trace.meta, extra={"sequence_lengths": recorded}))
    ).report

    assert report.causes[0].cause == "sequence_length_imbalance"
    assert "Σs²" not in " ".join(report.causes[0].evidence)

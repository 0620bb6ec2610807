"""Ranks that wait between steps, while the other ranks wait for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.delays import LoaderStall, Standstill
from tests.unit.analysis.diagnosis.causes.stalling import FLAT, S, report_of, stalled


@dataclass(frozen=True, slots=True)
class UnrecordedLoaderStall(Standstill):
    """Before some steps, some ranks wait for their loaders, and the other ranks wait for them."""

    cause: ClassVar[str] = "data_loading"


@pytest.mark.parametrize("kind", [LoaderStall, UnrecordedLoaderStall])
@pytest.mark.parametrize(("every", "length_s"), [(8, 1.5), (32, 5.0), (16, 60.0)])
def test_one_rank_that_waits_every_few_steps_is_a_straggler_with_a_headline(
    kind: type[Standstill], every: int, length_s: float
) -> None:
    session = stalled(kind(every, length_s * S, 15, (3,)))
    report = analyze(session.trace).report

    (cause, *others) = report.causes
    assert (cause.cause, cause.where.dp) == ("data_loading", 3)
    assert [other.contribution for other in others if other.contribution] == []
    assert not report.fidelity.verdict
    assert report.headline.kind == "launches"
    assert report.headline.slowdown == pytest.approx(session.truth.slowdown, rel=0.03)
    assert report.verdict.level == "slow"
    recorded = kind is LoaderStall
    said = "steps wait for their data" if recorded else "DP rank 3 stands still before steps, maybe"
    assert said in report.verdict.sentence
    assert cause.confidence is not None
    assert (cause.confidence > 0.5) == recorded
    assert report.recommendations[0].action == "load_ahead"


def test_the_ranks_of_a_host_that_wait_are_named_with_it() -> None:
    job = replace(FLAT, gpus_per_host=4)
    report = report_of(UnrecordedLoaderStall(8, 2 * S, 15, (4, 5, 6, 7)), job=job)
    host = report.hosts[4]

    assert report.causes[0].cause == "data_loading"
    assert any(
        f"DP ranks 4, 5, 6 and 1 more, all on {host}, wait" in e for e in report.causes[0].evidence
    )
    assert any("every 8 steps, in steps 15, 23, 31" in e for e in report.causes[0].evidence)

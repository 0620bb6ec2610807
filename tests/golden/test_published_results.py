"""Every number of the published results, within 1e-4 relative."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from app.analysis.diagnosis.locations import Where
from app.analysis.replay.session import prepare_replay
from app.analysis.replay.what_if import Against, BaseDurations, Change, Question, Selection, answer
from app.analysis.report.document import JobSizes
from tests.golden.conftest import Published

TOLERANCE = 1e-4

# Every entry of a result file is either compared below, or empty.
COMPARED = {
    "job_meta",
    "step_t_base",
    "step_t_nodelay",
    "step_t_noblk",
    "launch_slowdown",
    "blocking_slowdown",
    "blocking_step_slowdown",
    "launch_step_slowdown",
    "blocking_decompose_by_dp_rank",
    "blocking_decompose_by_stage",
    "blocking_decompose_by_optype",
    "blocking_decompose_by_dp_rank_per_step",
    "blocking_decompose_by_stage_per_step",
    "blocking_decompose_by_optype_per_step",
}


def near(expected: object) -> object:
    return pytest.approx(expected, rel=TOLERANCE, abs=0)


def by_step(published: Published, values: Sequence[float]) -> dict[str, float]:
    steps = published.report.steps.analyzed
    return dict(zip(map(str, steps), values, strict=True))


def numbered(values: Sequence[Any]) -> dict[str, Any]:
    return {str(i): value for i, value in enumerate(values)}


def test_every_number_of_the_result_is_compared(published: Published) -> None:
    empty = {name for name, value in published.result.items() if value is None}
    assert set(published.result) - empty == COMPARED


def test_sizes(published: Published) -> None:
    meta, sizes = published.result["job_meta"], published.report.sizes
    assert published.report.trial_name == meta["trial_name"]
    assert sizes == JobSizes(
        dp=meta["dp_size"],
        pp=meta["pp_size"],
        tp=meta["tp_size"],
        cp=meta["dsp_size"],
        vpp=meta["vpp_size"],
        world=meta["world_size"],
    )


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("recorded", "step_t_base"), ("simulated", "step_t_nodelay"), ("ideal", "step_t_noblk")],
)
def test_step_times(published: Published, ours: str, theirs: str) -> None:
    times = by_step(published, getattr(published.report.step_times, ours))
    assert times == near(published.result[theirs])


def test_slowdowns(published: Published) -> None:
    report, result = published.report, published.result
    assert report.slowdown == near(result["blocking_slowdown"])
    assert report.launch_slowdown == near(result["launch_slowdown"])
    assert by_step(published, report.step_slowdown) == near(result["blocking_step_slowdown"])
    launch = by_step(published, report.per_step.launch_slowdown)
    assert launch == near(result["launch_step_slowdown"])


def test_slowdown_by_op_type_dp_rank_and_stage(published: Published) -> None:
    report, result = published.report, published.result
    assert report.by_optype == near(result["blocking_decompose_by_optype"])
    assert numbered(report.by_dp) == near(result["blocking_decompose_by_dp_rank"])
    assert numbered(report.by_pp) == near(result["blocking_decompose_by_stage"])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("by_optype", "blocking_decompose_by_optype_per_step"),
        ("by_dp", "blocking_decompose_by_dp_rank_per_step"),
        ("by_pp", "blocking_decompose_by_stage_per_step"),
    ],
)
def test_slowdowns_of_every_step(published: Published, ours: str, theirs: str) -> None:
    values = getattr(published.report.per_step, ours)
    named: Mapping[str, Sequence[float]] = values if isinstance(values, dict) else numbered(values)
    expected = published.result[theirs]
    assert set(expected) == set(map(str, published.report.steps.analyzed))
    for name, slowdowns in named.items():
        mine = by_step(published, slowdowns)
        assert mine == near({step: entry[name] for step, entry in expected.items()})
    assert {name for entry in expected.values() for name in entry} == set(named)


@pytest.mark.parametrize("which", ["m_w", "m_s"])
def test_contributions(published: Published, which: str) -> None:
    report = published.report
    found = getattr(report, which)
    theirs = published.worst_workers if which == "m_w" else published.last_stage
    ours = {
        "trem": found.trem_s,
        "tadd": found.tadd_s,
        "tori": np.mean(report.step_times.simulated),
        "tideal": np.mean(report.step_times.ideal),
        "rem": found.rem,
        "add": found.add,
        {"m_w": "Mw", "m_s": "Ms"}[which]: found.rem,
    }
    assert ours == near(theirs)


def test_the_ranking_of_the_paper_takes_the_same_workers(published: Published) -> None:
    m_w = published.report.m_w
    assert m_w.published is not None
    assert m_w.published.workers == m_w.workers
    assert m_w.published.rem == near(published.worst_workers["Mw"])


def test_the_bootstrap_interval(published: Published) -> None:
    expected = {"AR": (1.969, 1.977), "ST": (1.170, 1.189)}[published.name]
    assert published.report.slowdown_ci95 == pytest.approx(expected, abs=1e-3)


def test_the_verdict_names_what_is_slow(published: Published) -> None:
    lead = published.report.causes[0]
    if published.name == "AR":
        assert (lead.cause, lead.where) == ("slow_worker", Where(workers=((0, 0),)))
        assert published.report.verdict.sentence == (
            "2.02× slower than without its cause: worker (0, 0) computes 2.4× slower than its peers"
        )
    else:
        assert (lead.cause, lead.where) == ("stage_imbalance", Where(stage=3))


def test_the_best_fix_saves_the_lost_time(published: Published) -> None:
    best = published.report.recommendations[0]
    if published.name == "AR":
        # S is only 1.97 because its ideal is a mean that contains the slow worker.
        assert best.title == "Replace worker (0, 0)"
        assert 0.49 < best.predicted_gain < 0.52
        # The recommended fix recovers no more than the loss, on every page and in every answer.
        assert best.predicted_gain == pytest.approx(published.report.headline.waste, abs=1e-3)
        replaced = Change(Selection(workers=((0, 0),)), BaseDurations.PEERS)
        found = answer(prepare_replay(published.trace), Question(changes=(replaced,)))
        headline = published.report.headline
        document = found.as_document(Against(headline.kind.value, headline.slowdown))
        assert document["gain"] == pytest.approx(best.predicted_gain, abs=1e-9)
        assert document["step_time_s"] == pytest.approx(best.predicted_step_time, abs=1e-6)
    else:
        assert best.action == "even_stages"


def test_exact_worker_slowdowns_equal_brute_force(published: Published) -> None:
    replayed = prepare_replay(published.trace)
    layout, simulator = replayed.layout, replayed.simulator
    ideal = float(simulator.ideal_step_times()[0])
    for dp in range(layout.dp):
        for pp in range(layout.pp):
            cells = np.zeros((layout.dp, layout.pp), dtype=bool)
            cells[dp, pp] = True
            brute = simulator.step_times([simulator.keep(cells=cells)])[0] / ideal
            heatmaps = published.analysis.heatmaps[:, dp, pp]
            assert heatmaps == pytest.approx(brute.astype(np.float32), rel=1e-6)
            exact = published.report.by_worker.exact[dp][pp]
            assert exact == pytest.approx(brute.mean(), rel=1e-9)


def test_no_adaptation_is_made(published: Published) -> None:
    assert published.report.fidelity.adaptations == ()


def test_waits_are_credited_to_the_slow_worker_and_not_to_its_pipeline(
    published: Published,
) -> None:
    arrivals = published.report.arrivals
    assert arrivals is not None
    waiting_s = sum(item.waits_s for item in arrivals.ranks)
    assert sum(item.rank_seconds for item in arrivals.ranks) == pytest.approx(waiting_s, rel=1e-4)
    assert arrivals.straggles == (published.name == "AR")
    if published.name == "AR":
        assert arrivals.worst.rank == 0
        assert arrivals.worst.rank_seconds >= 0.9 * waiting_s

from __future__ import annotations

from dataclasses import replace

import pytest

from app.analysis.synthesis.host_jobs import HostJob
from app.analysis.synthesis.host_sessions import run as run_hosts
from app.analysis.synthesis.injections.computations import SlowWorker, StageImbalance
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes
from benchmarks.score import HELD_OUT, Scored, headlines, lines, macro_f1, run, slowdown_of


def scored(
    *causes: str, named: tuple[str, ...], slowdown: float = 1.3, worker: bool | None = None
) -> Scored:
    return Scored(
        seed=1,
        causes=causes,
        slowdown=slowdown,
        measured=slowdown,
        named=named,
        confidence=(0.97,) * len(named),
        contribution=(0.9,) * len(named),
        worker_right=worker,
        stage_right=None,
        level="slow" if named else "ok",
    )


RESULTS = [
    scored("slow_worker", named=("slow_worker",), worker=True),
    scored("slow_worker", named=("network",), worker=False),
    scored("network", named=("network", "slow_worker"), worker=True),
    scored("network", named=(), slowdown=1.05, worker=False),
    scored("network", "data_loading", named=("data_loading",)),
    scored(named=(), slowdown=1.0),
    scored(named=("network",), slowdown=1.0),
]


def test_macro_f1_is_the_mean_over_the_causes_that_occur() -> None:
    singles = [RESULTS[0], RESULTS[1], RESULTS[2], RESULTS[5], RESULTS[6]]

    # slow_worker: 1 of 2 found, 1 named; network: 1 of 1 found, 3 named.
    assert macro_f1(singles) == pytest.approx((2 * 1 / (2 + 1) + 2 * 1 / (1 + 3)) / 2)


def test_the_report_ends_with_the_three_figures() -> None:
    text = list(lines(RESULTS))

    assert text[0].startswith("7 jobs: 3 slow ones with one cause, 1 with two, 2 healthy; 1 with")
    assert text[-1] == "macro F1 0.58, false alarms 50.0 %, worst worker 66.7 %"
    assert any(line.startswith("1 mixtures of two causes: first cause right in 1") for line in text)


def test_headlines_are_held_against_the_truth_cause_by_cause() -> None:
    off = replace(RESULTS[2], headline=1.3, without_causes=1.2)
    near = replace(RESULTS[0], headline=1.3, without_causes=1.28)
    text = list(headlines([off, near]))

    assert (
        text[0] == "Headline within 3 % of the true slowdown in 50.0 % of slow jobs with one cause"
    )
    assert [line.split()[0] for line in text[2:]] == ["worker", "network"]
    assert [line.split()[-2:] for line in text[2:]] == [["100", "%"], ["0", "%"]]


def test_a_heavy_stage_is_held_against_its_layers_evenly_divided() -> None:
    job = JobModel(Sizes(dp=2, pp=2), microbatches=4, steps=6)
    heavy = synthesize(job, [StageImbalance(1.5, 1.5)], seed=1)
    slow = synthesize(job, [SlowWorker((1, 1), 1.5)], seed=1)

    assert slowdown_of(slow) == slow.truth.slowdown
    assert 1.1 < slowdown_of(heavy) < heavy.truth.slowdown - 0.1

    hosts = HostJob(dp=2, pp=2, microbatches=4, steps=6)
    both = run_hosts(replace(hosts, factors={(0, 1): 1.5, (1, 1): 1.5}))
    one = run_hosts(replace(hosts, factors={(0, 1): 1.5}))
    assert slowdown_of(one) == one.truth.slowdown
    assert 1.1 < slowdown_of(both) < both.truth.slowdown - 0.1


@pytest.mark.slow
def test_the_rules_hold_on_a_few_jobs_of_the_seeds_they_were_made_on() -> None:
    assert max(range(1, 21)) < HELD_OUT
    results = run(first_seed=1, jobs=20, processes=1)

    singles = [s for s in results if len(s.causes) < 2 and s.slowdown >= 1.1]
    assert len(singles) > 5
    assert macro_f1(singles) == 1.0
    assert not any(s.named for s in results if not s.causes)

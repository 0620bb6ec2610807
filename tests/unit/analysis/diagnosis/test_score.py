from __future__ import annotations

import pytest

from benchmarks.score import HELD_OUT, Scored, lines, macro_f1, run


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


@pytest.mark.slow
def test_the_rules_hold_on_a_few_jobs_of_the_seeds_they_were_made_on() -> None:
    assert max(range(1, 21)) < HELD_OUT
    results = run(first_seed=1, jobs=20, processes=1)

    singles = [s for s in results if len(s.causes) < 2 and s.slowdown >= 1.1]
    assert len(singles) > 5
    assert macro_f1(singles) == 1.0
    assert not any(s.named for s in results if not s.causes)

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from app.analysis.report import analyze
from app.analysis.synthesis.fleet import SHARES, STRAGGLING, UNSEEN, plan_fleet
from app.analysis.synthesis.population import CAUSES, LAST_STAGE, draw_session


def test_a_fleet_straggles_as_the_paper_says() -> None:
    fleet = plan_fleet(1000, seed=3)

    assert len({member.name for member in fleet}) == len({m.seed for m in fleet}) == 1000
    straggling = [member for member in fleet if member.causes in SHARES]
    assert len(straggling) == 425
    # 1 % each of those that S does not show
    assert sum(member.causes in UNSEEN for member in fleet) == 12
    causes = Counter(member.causes for member in straggling)
    assert causes["slow_worker",] == 7  # 1.7 %
    last_stage = sum(count for names, count in causes.items() if "last_stage" in names)
    assert last_stage / 425 == pytest.approx(0.393, abs=0.002)
    lengths = sum(count for names, count in causes.items() if "sequence_length_imbalance" in names)
    assert lengths / 425 == pytest.approx(0.214, abs=0.002)


def test_the_fleet_s_slowdowns_are_those_of_the_paper() -> None:
    fleet = plan_fleet(4000, seed=3)
    slowdown = np.array([1.0 if m.causes in UNSEEN else m.slowdown for m in fleet])
    of_workers = [m.slowdown for m in fleet if m.causes == ("slow_worker",)]
    of_lengths = [m.slowdown for m in fleet if m.causes == ("sequence_length_imbalance",)]

    straggling = slowdown[slowdown >= STRAGGLING]
    assert straggling.mean() == pytest.approx(1.28, abs=0.03)
    assert np.mean(of_workers) == pytest.approx(3.04, abs=0.1)
    assert np.mean(of_lengths) == pytest.approx(1.34, abs=0.05)
    waste = 1 - 1 / slowdown
    assert np.quantile(waste, 0.9) == pytest.approx(0.213, abs=0.03)
    assert np.quantile(waste, 0.99) == pytest.approx(0.45, abs=0.08)
    assert waste.mean() == pytest.approx(0.104, abs=0.03)


def test_equal_seeds_give_equal_fleets() -> None:
    assert plan_fleet(20, seed=1) == plan_fleet(20, seed=1) != plan_fleet(20, seed=2)


def test_shares_are_kept_even_by_a_small_fleet() -> None:
    fleet = plan_fleet(10, seed=1)

    assert sum(bool(member.causes) for member in fleet) == 4
    assert sum(SHARES.values()) == pytest.approx(1.0)
    assert plan_fleet(1, seed=1)[0].causes == ()
    with pytest.raises(ValueError, match="at least one job"):
        plan_fleet(0, seed=1)


@pytest.mark.parametrize("cause", CAUSES)
def test_a_drawn_job_has_its_cause_and_about_the_slowdown_asked_for(cause: str) -> None:
    session = draw_session((cause,), 1.3, seed=11)

    assert session.truth.causes == (cause,)
    assert 1.1 <= session.truth.slowdown < 1.5
    assert len(session.trace) < 100_000


def test_a_drawn_healthy_job_is_healthy_and_a_last_stage_is_the_last() -> None:
    assert draw_session((), 1.5, seed=4).truth.slowdown == 1.0
    for seed in range(3):
        session = draw_session((LAST_STAGE,), 1.2, seed=seed)
        assert session.truth.causes == ("stage_imbalance",)
        assert session.truth.stage == session.job.sizes.pp - 1


def test_members_are_synthesized_by_their_own_seed() -> None:
    member = next(m for m in plan_fleet(40, seed=1) if m.causes == ("garbage_collection",))
    session = member.synthesize()

    assert session.seed == member.seed
    assert session.truth.slowdown == pytest.approx(member.true_slowdown, rel=0.1)


def test_an_analysis_finds_about_the_slowdown_that_was_planned() -> None:
    planned, found = [], []
    for member in [m for m in plan_fleet(60, seed=2) if m.causes in SHARES][:12]:
        planned.append(member.slowdown)
        found.append(analyze(member.synthesize().trace).document["slowdown"])

    assert np.mean(found) == pytest.approx(np.mean(planned), rel=0.05)

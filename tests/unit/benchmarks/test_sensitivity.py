"""Which verdicts hang on which threshold."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Final

import pytest

from app.analysis.diagnosis import late_launches
from app.analysis.diagnosis.causes import network_congestion
from benchmarks.sensitivity import Threshold, changes_of, moved, table, thresholds

ROOT: Final = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("value", "factor", "to"), [(0.5, 0.8, 0.4), (1.5, 1.2, 1.8), (2, 0.8, 1), (20, 1.2, 24)]
)
def test_counts_move_by_one_at_least(value: float, factor: float, to: float) -> None:
    assert moved(value, factor) == pytest.approx(to)
    assert type(moved(value, factor)) is type(value)


def test_thresholds_of_the_whole_diagnosis_are_moved() -> None:
    found = thresholds()
    written = [
        path
        for path in (ROOT / "app/analysis/diagnosis").rglob("*.py")
        if "class Thresholds" in path.read_text()
    ]

    assert len(found) == len(written)
    for module in found.values():
        assert is_dataclass(module.THRESHOLDS)
        assert fields(module.THRESHOLDS)


def test_a_verdict_changes_with_its_threshold_and_thresholds_stay_as_they_were() -> None:
    before = network_congestion.THRESHOLDS, late_launches.THRESHOLDS
    changes = changes_of("congestion", [])

    assert Threshold(network_congestion.__name__, "quiet") in [one.threshold for one in changes]
    assert before == (network_congestion.THRESHOLDS, late_launches.THRESHOLDS)
    assert "| `causes.network_congestion.quiet` | 1: congestion | 0 |" in table(changes, 0)

"""Distribution curves and size classes of a fleet."""

from __future__ import annotations

import itertools
import math

import numpy as np

from app.analysis.fleet import POINTS, by_doubling, cdf, rank_correlation, share_from
from app.analysis.report.session_verdict import longest_sequence


def test_a_distribution_ends_at_all_and_has_few_points() -> None:
    points = cdf([float(value) for value in range(5000)])
    assert len(points) <= POINTS
    assert points[-1] == (4999.0, 1.0)
    assert all(a[1] <= b[1] for a, b in itertools.pairwise(points))


def test_shares_and_ranks() -> None:
    assert share_from([0.1, 0.5, 0.9], 0.5) == 2 / 3
    assert share_from([], 0.5) == 0.0
    assert rank_correlation(np.array([1.0, 2.0, 9.0]), np.array([2.0, 3.0, 4.0])) == 1.0
    assert math.isnan(rank_correlation(np.array([1.0, 1.0]), np.array([2.0, 3.0])))


def test_classes_double() -> None:
    found = by_doubling([128, 255, 256, 1024], [1.0, 1.2, 1.4, 2.0])
    assert [(one.low, one.jobs) for one in found] == [(128.0, 2), (256.0, 1), (1024.0, 1)]


def test_metadata_may_hold_anything_where_lengths_are() -> None:
    assert (
        longest_sequence({"seq_length": "many", "sequence_lengths": {"1": [[3, True, None]]}}) == 3
    )
    assert longest_sequence({"seq_length": -4}) is None

"""Distribution curves and size classes of a fleet."""

from __future__ import annotations

import itertools
import math

import numpy as np

from app.analysis.fleet import (
    POINTS,
    LengthClass,
    by_doubling,
    cdf,
    length_classes,
    rank_correlation,
    share_from,
)
from app.analysis.report.session_verdict import count_lengths, longest_sequence


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


def test_a_histogram_has_classes_of_doubling_length() -> None:
    assert count_lengths([]) == ()
    assert count_lengths([1, 1023, 1024, 2047, 2048, 2**31 - 1]) == (
        (1, 1), (512, 1), (1024, 2), (2048, 1), (2**30, 1),
    )  # fmt: skip


def test_each_job_has_the_same_weight_in_the_histogram() -> None:
    long_tailed = count_lengths([100] * 97 + [32_000] * 3)
    classes = length_classes([long_tailed, count_lengths([100])])
    assert [bar.low for bar in classes] == [64 << at for at in range(9)], "without gaps"
    assert classes[0] == LengthClass(64, 128, (0.97 + 1) / 2)
    assert math.isclose(classes[-1].share, 0.03 / 2)
    assert length_classes([]) == ()

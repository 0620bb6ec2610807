"""Heatmaps: their mean, and how they travel to browsers."""

from __future__ import annotations

import numpy as np

from app.analysis.report.heatmaps import HEATMAP_MISSING, encode_heatmap, mean_heatmap


def test_the_mean_is_of_the_steps_that_know_a_worker() -> None:
    nan = np.nan
    steps = np.array([[[1.0, 2.0, nan]], [[3.0, nan, nan]]], dtype=np.float32)
    np.testing.assert_array_equal(mean_heatmap(steps), np.array([[2.0, 2.0, nan]], np.float32))


def test_a_heatmap_is_scaled_clipped_and_says_what_is_missing() -> None:
    values = np.array([[1.0, 1.23456], [np.nan, np.inf], [7.0, -1.0]], dtype=np.float32)
    decoded = np.frombuffer(encode_heatmap(values), "<u2").tolist()
    assert decoded == [10_000, 12_346, HEATMAP_MISSING, HEATMAP_MISSING, 65_534, 0]

"""Heatmaps: their mean, and their encoding for browsers."""

from __future__ import annotations

import numpy as np

from app.analysis.report.charts import encode_heatmap, mean_heatmap


def test_the_mean_is_over_the_steps() -> None:
    steps = np.array([[[1.0, 2.0]], [[3.0, 2.0]]], dtype=np.float32)
    np.testing.assert_array_equal(mean_heatmap(steps), np.array([[2.0, 2.0]], np.float32))


def test_a_heatmap_is_scaled_and_clipped() -> None:
    values = np.array([[1.0, 1.23456], [7.0, -1.0]], dtype=np.float32)
    decoded = np.frombuffer(encode_heatmap(values), "<u2").tolist()
    assert decoded == [10_000, 12_346, 65_534, 0]

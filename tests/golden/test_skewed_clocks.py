"""Published traces, recorded by skewed clocks."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from app.analysis.replay.layout.arrange import lay_out
from app.analysis.replay.session import prepare_replay
from app.analysis.report.build import analyze
from tests.golden.conftest import Published


@pytest.mark.parametrize("sigma_ms", [5, 20, 100])
def test_constant_skew_is_taken_back(published: Published, sigma_ms: int) -> None:
    trace = published.trace
    rng = np.random.default_rng(sigma_ms)
    offsets = rng.normal(0, sigma_ms * 1e6, trace.meta.sizes.world).astype(np.int64)
    skewed = dataclasses.replace(trace, start_ns=trace.start_ns + offsets[trace.rank])
    report = analyze(skewed).report
    assert report.clocks.aligned is True
    assert report.slowdown == pytest.approx(published.report.slowdown, abs=1e-3)


def test_clean_clocks_are_not_touched(published: Published) -> None:
    assert published.report.clocks.aligned is False
    assert np.abs(published.report.clocks.offsets_ns).max() < 0.5e6
    (layout,) = lay_out(published.trace).groups
    assert np.array_equal(prepare_replay(published.trace).layout.start_ns, layout.start_ns)

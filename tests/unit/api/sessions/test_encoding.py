"""How arrays travel to browsers."""

from __future__ import annotations

import json

import numpy as np

from app.analysis.report.timeline import Lanes, Timeline
from app.api.sessions.read import timeline_columns


def test_columns_of_a_timeline_are_json_without_nan() -> None:
    lanes = Lanes(
        dp=np.array([0, 1], np.int32),
        pp=np.array([0, 0], np.int32),
        op=np.array([3, 3], np.int16),
        mb=np.array([-1, 2], np.int32),
        start_ns=np.array([0.0, 1e12 + 0.6]),
        begin_ns=np.array([1.4, 2.0]),
        end_ns=np.array([5.0, 6.0]),
        ratio=np.array([np.nan, 1.23456]),
    )
    columns = timeline_columns(Timeline(7, ("a",), lanes, lanes, 1.5, 1.0))
    assert json.loads(json.dumps(columns, allow_nan=False)) == columns
    assert columns["recorded"]["ratio"] == [None, 1.2346]
    assert columns["recorded"]["start_ns"] == [0, 1_000_000_000_001]
    assert columns["recorded"]["begin_ns"] == [1, 2]

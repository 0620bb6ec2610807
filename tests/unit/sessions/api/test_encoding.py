"""The encoding of arrays for browsers."""

from __future__ import annotations

import json
from dataclasses import fields

import numpy as np

from app.analysis.replay.layout.dense import Nodes
from app.analysis.report.charts import Lanes, Timeline
from app.sessions.api.read import timeline_columns


def test_columns_of_a_timeline_are_json_without_nan() -> None:
    nodes = Nodes(
        op=np.array([3], np.int16),
        pp=np.array([0], np.int32),
        order=np.array([0], np.int32),
        mb=np.array([-1], np.int32),
        mc=np.array([-1], np.int32),
    )
    timeline = Timeline(
        step=7,
        op_names=("a",),
        nodes=nodes,
        dp_ranks=(0, 1),
        launch_ns=np.array([[0.0, 1e12 + 0.6]]),
        begin_ns=np.array([[1.4, 2.0]]),
        end_ns=np.array([[5.0, 6.0]]),
        ratio=np.array([[np.nan, 1.23456]]),
        runs=np.ones((1, 2), dtype=bool),
        ideal=Lanes(*(np.array([]) for _ in fields(Lanes))),
        recorded_s=1.5,
        ideal_s=1.0,
    )
    columns = timeline_columns(timeline)
    assert json.loads(json.dumps(columns, allow_nan=False)) == columns
    assert columns["recorded"]["ratio"] == [None, 1.2346]
    assert columns["recorded"]["start_ns"] == [0, 1_000_000_000_001]
    assert columns["recorded"]["begin_ns"] == [1, 2]

"""Bodies of pulses: written and read again, with beats."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from app.analysis.pulse.columns import ARRAYS, MEASURES, NO_BEAT
from app.analysis.synthesis.job import stream
from app.analysis.synthesis.pulse_job import PulseDials, PulseJob
from app.errors import InvalidPulseError
from app.pulse.body import read_pulse, write_pulse


def test_rows_and_beats_are_read_as_they_were_written() -> None:
    rows = PulseJob.healthy(PulseDials(dp=4, steps=6), stream(1, "body")).rows()
    beat = np.arange(len(rows)) % 3 == 2
    rows = replace(
        rows,
        phase=np.where(beat, np.arange(len(rows)) % 2, NO_BEAT),
        since_ns=np.where(beat, rows.time_ns - 5, 0),
        phases=("forward", "checkpoint"),
        **{name: np.where(beat, 0, getattr(rows, name)) for name in MEASURES},
    )
    sent = read_pulse(write_pulse(rows, "node-1"), attempt=1)

    assert (sent.host, sent.counts, sent.rows.phases) == ("node-1", {}, rows.phases)
    for name in ARRAYS:
        assert getattr(sent.rows, name).tolist() == getattr(rows, name).tolist(), name


def test_the_example_of_the_page_is_read() -> None:
    columns = {
        "step": [812, 1, 1],
        "rank": [3, 0, 0],
        "dp_rank": [3, 0, 0],
        "pp_rank": [0, 0, 0],
        "time_ns": [1_790_000_000_000_000_000, 1_000_000_000, 5_000_000_000],
        **{name: [700, -3, None] for name in MEASURES},
        "phase": [None, None, 0],
        "since_ns": [None, None, 1_790_000_001_100_000_000],
    }
    body = {"pulse": 1, "phases": ["forward"], "columns": columns}
    rows = read_pulse(json.dumps(body).encode(), attempt=2).rows

    assert rows.attempt.tolist() == [2, 2, 2]
    assert rows.step.tolist() == [812, 813, 814]
    assert rows.compute_ns.tolist() == [700, 697, 0]
    assert rows.phase.tolist() == [NO_BEAT, NO_BEAT, 0]
    columns["rank"] = [3]
    with pytest.raises(InvalidPulseError, match="rank has 1 values, step has 3") as refused:
        read_pulse(json.dumps(body).encode(), attempt=2)
    assert refused.value.stable_code == "pulse.uneven"

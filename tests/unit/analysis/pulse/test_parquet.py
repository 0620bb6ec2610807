"""Files of pulses: read in time order, for any order of rows; invalid files are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.analysis.pulse import parquet
from app.analysis.pulse.columns import ARRAYS, NO_BEAT, Pulses, joined
from app.analysis.pulse.parquet import PulseFile, columns_of
from app.analysis.synthesis.job import stream
from app.analysis.synthesis.pulse_job import PulseDials, PulseJob
from app.analysis.synthesis.random_pulses import with_beats
from app.errors import InvalidPulseError

RNG = stream(1, "file")
ROWS = with_beats(PulseJob.healthy(PulseDials(dp=4, steps=50), RNG), RNG)


def written(path: Path, rows: Pulses = ROWS, **columns: pa.Array[Any]) -> Path:
    pq.write_table(pa.table({**columns_of(rows), **columns}), path)
    return path


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    read = joined(list(PulseFile(written(tmp_path / "a.parquet")).batches()))

    for name in ARRAYS:
        if name != "phase":
            assert np.array_equal(getattr(read, name), getattr(ROWS, name)), name
    beats = read.phase != NO_BEAT
    assert beats.sum() == (ROWS.phase != NO_BEAT).sum() > 0
    assert {read.phases[number] for number in read.phase[beats]} == {
        *("forward-compute", "dp-all-reduce"),
    }


def test_a_file_may_have_no_beats_and_smaller_integers(tmp_path: Path) -> None:
    steps = ROWS.take(ROWS.phase == NO_BEAT)
    table = pa.table(columns_of(steps)).drop_columns(["phase", "since_ns"])
    at = table.schema.get_field_index("rank")
    table = table.set_column(at, "rank", table["rank"].cast(pa.int32()))
    pq.write_table(table, tmp_path / "a.parquet")
    pq.write_table(table.slice(0, 0), tmp_path / "none.parquet")
    read = joined(list(PulseFile(tmp_path / "a.parquet").batches()))

    assert np.array_equal(read.rank, steps.rank)
    assert (read.phase == NO_BEAT).all()
    assert list(PulseFile(tmp_path / "none.parquet").batches()) == []


def test_a_file_in_another_order_is_sorted_part_by_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_SORTED_ROWS", 60)
    by_rank = ROWS.take(np.argsort(ROWS.rank, kind="stable"))
    file = PulseFile(written(tmp_path / "a.parquet", by_rank))
    parts = list(file.batches())

    assert len(parts) > 3
    assert np.array_equal(joined(parts).time_ns, ROWS.time_ns)
    assert file.counts["pulse.out_of_order"] > 0


def test_the_order_is_that_of_right_clocks_of_all_ranks_however_late_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "BATCH_ROWS", 50)
    rows = PulseJob.healthy(PulseDials(dp=4, steps=150), stream(2, "clocks")).rows()
    # A rank joins after many batches, with a clock that is a minute ahead.
    rows = rows.take((rows.rank != 3) | (rows.step >= 40))
    ahead = replace(rows, time_ns=rows.time_ns + np.where(rows.rank == 3, 60_000_000_000, 0))
    file = PulseFile(written(tmp_path / "a.parquet", ahead))
    read = joined(list(file.batches()))

    assert file.counts == {}
    assert np.array_equal(read.step, rows.step)
    file = PulseFile(written(tmp_path / "b.parquet", ahead.take(np.argsort(ahead.time_ns))))
    read = joined(list(file.batches()))
    assert file.counts["pulse.out_of_order"] > 0
    assert np.array_equal(read.step, rows.step)


def test_damaged_rows_are_counted_and_left_out(tmp_path: Path) -> None:
    compute = ROWS.compute_ns.astype(np.float64)
    steps = np.flatnonzero(ROWS.phase == NO_BEAT)
    compute[steps[3]] = np.nan
    wait = pa.array(ROWS.wait_ns, mask=(ROWS.phase != NO_BEAT) | (np.arange(len(ROWS)) == steps[5]))
    compute_column = pa.array(compute, mask=ROWS.phase != NO_BEAT)
    path = written(
        tmp_path / "a.parquet",
        compute_ns=compute_column,
        wait_ns=wait,
        loss=pa.array(np.zeros(len(ROWS))),
    )
    file = PulseFile(path)
    rows = joined(list(file.batches()))

    assert len(rows) == len(ROWS) - 2
    assert file.counts == {"pulse.nan": 1, "pulse.null": 1, "pulse.unknown_column": 1}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("text", "pulse.not_parquet"),
        ("without", "pulse.missing_column"),
        ("texts", "pulse.wrong_type"),
    ],
)
def test_a_file_that_is_no_pulse_is_refused(tmp_path: Path, change: str, code: str) -> None:
    path = tmp_path / "a.parquet"
    columns = dict(columns_of(ROWS))
    if change == "text":
        path.write_text("attempt,step\n1,2\n")
    elif change == "without":
        del columns["wait_ns"]
        pq.write_table(pa.table(columns), path)
    else:
        columns["step"] = pa.array(["one"] * len(ROWS))
        pq.write_table(pa.table(columns), path)

    with pytest.raises(InvalidPulseError) as refused:
        list(PulseFile(path).batches())
    assert refused.value.stable_code == code

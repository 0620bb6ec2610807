"""Bodies with a small session, valid or with one fault."""

from __future__ import annotations

import functools
import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from app.analysis.trace.model import ABSENT, Trace
from tests import factories

Floats = NDArray[np.float32]

PARQUET = "application/vnd.apache.parquet"
NDJSON = "application/x-ndjson"


@functools.cache
def trace() -> Trace:
    """Return the sample session's trace."""
    return factories.session(dp=3, pp=2).trace


SIZES = {"dp": 3, "pp": 2, "world": 6}
META = "trial_name: sample\ndp_size: 3\npp_size: 2\nworld_size: 6\n"


@functools.cache
def table() -> pa.Table:
    """Return the sample session in our Parquet columns."""
    sample = trace()
    names = np.array(sample.op_names)
    return pa.table(
        {
            "rank": sample.rank,
            "dp": sample.dp,
            "pp": sample.pp,
            "step": sample.step,
            "op": pa.array(names[sample.op].tolist()),
            "mb": pa.array(sample.mb, mask=sample.mb == ABSENT),
            "mc": pa.array(sample.mc, mask=sample.mc == ABSENT),
            "start_ns": sample.start_ns,
            "dur_ns": sample.duration_ns,
        }
    )


def parquet(**columns: Any) -> bytes:  # noqa: ANN401 - anything that becomes an Arrow column
    """Return a Parquet body; `columns` replace those of the sample."""
    sample = table()
    for name, values in columns.items():
        at = sample.schema.get_field_index(name)
        sample = sample.remove_column(at) if values is None else sample.set_column(at, name, values)
    return written(sample)


def changed(column: str, row: int, value: object) -> bytes:
    """Return a Parquet body with one value changed."""
    values = table()[column].to_pylist()
    values[row] = value
    return parquet(**{column: pa.array(values, table().schema.field(column).type)})


def published(start: Floats, duration: Floats, chosen: NDArray[np.intp] | None = None) -> bytes:
    """Return a Parquet body in the published columns, of all rows or the chosen ones."""
    sample, rows = trace(), table()
    whole = pa.table(
        {
            "dp_rank": rows["dp"],
            "stage": rows["pp"],
            "rank": rows["rank"],
            "step": rows["step"],
            "optype": rows["op"],
            "start_ts": pa.array(start),
            "duration": pa.array(duration),
            "seq_id": sample.order,
            "mc": sample.mc,
            "gmc": sample.mc,
            "mb_id": sample.mb,
        }
    )
    return written(whole if chosen is None else whole.take(chosen))


def published_times() -> tuple[Floats, Floats]:
    """Return the sample's starts within their steps and durations, float32 seconds."""
    sample = trace()
    steps, of_row = np.unique(sample.step, return_inverse=True)
    first = np.full(len(steps), np.iinfo(np.int64).max)
    np.minimum.at(first, of_row, sample.start_ns)
    start = (sample.start_ns - first[of_row]) / 1e9
    return start.astype(np.float32), (sample.duration_ns / 1e9).astype(np.float32)


def written(rows: pa.Table) -> bytes:
    """Return a table as the bytes of a Parquet file."""
    file = io.BytesIO()
    pq.write_table(rows, file)
    return file.getvalue()

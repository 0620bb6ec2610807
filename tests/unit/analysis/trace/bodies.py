"""Small bodies for the decoders: two DP ranks, two stages, two steps."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import SessionMeta, Sizes, Trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

META = SessionMeta(Sizes(dp=2, pp=2, tp=2), trial_name="small")
LIMITS = Limits(max_decompressed_bytes=64 << 20, max_rows=100_000, max_header_bytes=1 << 20)
EPOCH_NS = 1_760_000_000_123_456_789
STEPS = (7, 9)
OPS = ("forward-compute", "forward-send", "backward-compute", "gc")
MICROBATCHES = 3

PUBLISHED_TYPES = {
    "dp_rank": pa.int8(),
    "stage": pa.int8(),
    "rank": pa.int16(),
    "step": pa.int64(),
    "optype": pa.string(),
    "start_ts": pa.float32(),
    "duration": pa.float32(),
    "seq_id": pa.int32(),
    "mc": pa.int8(),
    "mb_id": pa.int8(),
    "gmc": pa.int16(),
}


def rows() -> list[dict[str, Any]]:
    """Return the operations with our names and types, in the order of recorders."""
    made = []
    for step in STEPS:
        for stage in range(2):
            for dp in range(2):
                for op in OPS:
                    count = 1 if op == "gc" else MICROBATCHES
                    for mb in range(count):
                        begin = (OPS.index(op) * MICROBATCHES + mb) * 1_000_000
                        made.append(
                            {
                                "rank": dp * 4 + stage * 2,
                                "dp": dp,
                                "pp": stage,
                                "step": step,
                                "op": op,
                                "mb": mb if op.endswith("compute") else -1,
                                "mc": 0 if op.endswith("compute") else -1,
                                "start_ns": EPOCH_NS + step * 10**9 + begin + rank_skew(dp, stage),
                                "dur_ns": 0 if op == "gc" else 900_000 + 1_000 * mb + dp,
                            }
                        )
    return made


def rank_skew(dp: int, stage: int) -> int:
    """Return how much later than the first worker a worker starts, in ns."""
    return (dp * 2 + stage) * 10_000


def published_columns() -> dict[str, list[Any]]:
    """Return the operations as columns of the published traces."""
    origin = {step: EPOCH_NS + step * 10**9 for step in STEPS}
    seen: dict[tuple[int, int, str], int] = {}
    columns: dict[str, list[Any]] = {name: [] for name in PUBLISHED_TYPES}
    for row in rows():
        key = (row["rank"], row["step"], row["op"])
        seen[key] = seen.get(key, -1) + 1
        values = {
            "dp_rank": row["dp"],
            "stage": row["pp"],
            "rank": row["rank"],
            "step": row["step"],
            "optype": row["op"],
            "start_ts": (row["start_ns"] - origin[row["step"]]) / 1e9,
            "duration": row["dur_ns"] / 1e9,
            "seq_id": seen[key],
            "mc": row["mc"],
            "mb_id": row["mb"],
            "gmc": row["pp"] if row["mc"] >= 0 else -1,
        }
        for name, value in values.items():
            columns[name].append(value)
    return columns


def published_table(**changes: Sequence[Any] | pa.Array[Any] | None) -> pa.Table:
    """Return the published columns, some of them replaced, or left out if None."""
    columns: dict[str, Any] = {}
    for name, values in {**published_columns(), **changes}.items():
        if isinstance(values, pa.Array):
            columns[name] = values
        elif values is not None:
            columns[name] = pa.array(values, PUBLISHED_TYPES.get(name))
    return pa.table(columns)


def native_table(made: Iterable[Mapping[str, Any]] | None = None) -> pa.Table:
    """Return rows as a table with our columns."""
    return pa.Table.from_pylist([dict(row) for row in (rows() if made is None else made)])


def parquet(table: pa.Table, **options: Any) -> bytes:  # noqa: ANN401 - of `write_table`
    """Return a table as Parquet bytes."""
    written = io.BytesIO()
    pq.write_table(table, written, **options)
    return written.getvalue()


def header(meta: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return an NDJSON header."""
    return {
        "schema": "paceline.trace/1",
        "meta": {"dp": 2, "pp": 2, "tp": 2, "trial_name": "small"} if meta is None else dict(meta),
    }


def ndjson(
    made: Iterable[Mapping[str, Any]] | None = None, meta: Mapping[str, Any] | None = None
) -> bytes:
    """Return rows as plain NDJSON with a header."""
    lines = [header(meta), *(rows() if made is None else made)]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def decoded(body: bytes, meta: SessionMeta | None = META) -> Trace:
    """Decode a body with small limits."""
    return decode(body, meta, limits=LIMITS).trace


COLUMNS = (
    "rank",
    "dp",
    "pp",
    "step",
    "op",
    "mb",
    "mc",
    "order",
    "start_ns",
    "duration_ns",
)


def assert_same(one: Trace, other: Trace) -> None:
    """Check that two traces agree in all values and types."""
    assert one.op_names == other.op_names
    assert one.step_relative == other.step_relative
    assert one.meta == other.meta
    for name in COLUMNS:
        left, right = getattr(one, name), getattr(other, name)
        assert left.dtype == right.dtype, name
        np.testing.assert_array_equal(left, right, name)


def names_of(trace: Trace) -> list[str]:
    """Return the type of each operation."""
    return [trace.op_names[code] for code in trace.op.tolist()]


def arrow_file() -> bytes:
    """Return the operations as an Arrow file, with a dictionary of names."""
    table = native_table()
    names = table.column("op").combine_chunks().dictionary_encode()
    table = table.set_column(table.schema.get_field_index("op"), "op", names)
    written = io.BytesIO()
    with pa.ipc.new_file(written, table.schema) as writer:
        writer.write_table(table)
    return written.getvalue()

"""The traces that are measured: AR, and AR tiled 16 times along DP."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.encode import to_parquet
from app.analysis.trace.metadata import load_metadata
from app.analysis.trace.model import SessionMeta, Sizes

TILES: Final = 16
REFERENCE: Final = "PACELINE_REFERENCE_DATA"
ADDRESS: Final = "https://github.com/ByteDance-Seed/StragglerAnalysis"

# What AR is: jobs of this size take its place where it is not there.
_AR_SIZES: Final = Sizes(dp=4, pp=4, tp=4)
_AR_STEPS: Final = 44
_AR_MICROBATCHES: Final = 32


@dataclass(frozen=True, slots=True)
class BenchTrace:
    """A trace in a Parquet file."""

    name: str
    path: Path
    meta: SessionMeta
    operations: int


def make_traces(directory: Path) -> list[BenchTrace]:
    """Return AR, the tiled AR and ST, or synthetic traces, as files in `directory`."""
    reference = os.environ.get(REFERENCE)
    if not reference:
        sys.stderr.write(
            f"{REFERENCE} is not set: synthetic traces of the same size take the place of the "
            f"published one ({ADDRESS}).\n"
        )
        return [
            _synthetic(directory, "synthetic", _AR_SIZES),
            _synthetic(
                directory, f"synthetic, DP x {TILES}", replace(_AR_SIZES, dp=_AR_SIZES.dp * TILES)
            ),
        ]
    large, small = (_published(Path(reference), name) for name in ("AR", "ST"))
    return [large, _tiled(large.path, large.meta, directory), small]


def _published(directory: Path, name: str) -> BenchTrace:
    path = directory / f"trace-{name}.parquet"
    meta = load_metadata((directory / f"meta-{name}.yaml").read_text())
    return BenchTrace(name, path, meta, pq.read_metadata(path).num_rows)


def _tiled(published: Path, meta: SessionMeta, directory: Path) -> BenchTrace:
    """Write the job as it would be with `TILES` times as many DP ranks, all of them alike."""
    sizes = meta.sizes
    many = replace(sizes, dp=sizes.dp * TILES)
    table = pq.read_table(published)
    stages = table["stage"].to_numpy()
    pieces = []
    for stage in range(sizes.pp):
        rows = table.filter(pa.array(stages == stage))
        for tile in range(TILES):
            dp = rows["dp_rank"].to_numpy().astype(np.int64) + tile * sizes.dp
            # Ranks count TP and CP, then DP, then PP, as AR's do.
            rank = (stage * many.dp + dp) * sizes.tp * sizes.cp
            piece = _replaced(rows, "dp_rank", dp)
            pieces.append(_replaced(piece, "rank", rank))
    tiled = pa.concat_tables(pieces)
    path = directory / "trace-tiled.parquet"
    pq.write_table(tiled, path)
    return BenchTrace(f"AR, DP x {TILES}", path, replace(meta, sizes=many), tiled.num_rows)


def _replaced(table: pa.Table, name: str, values: NDArray[np.int64]) -> pa.Table:
    at = table.schema.get_field_index(name)
    return table.set_column(at, name, pa.array(values, table.schema.field(at).type))


def _synthetic(directory: Path, name: str, sizes: Sizes) -> BenchTrace:
    job = JobModel(sizes=sizes, microbatches=_AR_MICROBATCHES, steps=_AR_STEPS)
    trace = synthesize(job, seed=1).trace
    path = directory / f"trace-{sizes.dp}.parquet"
    path.write_bytes(to_parquet(trace))
    return BenchTrace(name, path, trace.meta, len(trace))

"""The measured traces: AR, and AR repeated 16 and 48 times along DP."""

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
MORE_TILES: Final = 48
REFERENCE: Final = "PACELINE_REFERENCE_DATA"
ADDRESS: Final = "https://github.com/ByteDance-Seed/StragglerAnalysis"

# Sizes of AR: synthetic jobs of these sizes replace it if it is not available.
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
        return [_synthetic(directory, tiles) for tiles in (1, TILES)]
    large, small = (_published(Path(reference), name) for name in ("AR", "ST"))
    return [large, _tiled(large, directory, TILES), small]


def make_growing(directory: Path) -> tuple[BenchTrace, BenchTrace]:
    """Return a job repeated `TILES` and `MORE_TILES` times along DP, as files."""
    reference = os.environ.get(REFERENCE)
    if not reference:
        return _synthetic(directory, TILES), _synthetic(directory, MORE_TILES)
    large = _published(Path(reference), "AR")
    return _tiled(large, directory, TILES), _tiled(large, directory, MORE_TILES)


def _published(directory: Path, name: str) -> BenchTrace:
    path = directory / f"trace-{name}.parquet"
    meta = load_metadata((directory / f"meta-{name}.yaml").read_text())
    return BenchTrace(name, path, meta, pq.read_metadata(path).num_rows)


def _tiled(published: BenchTrace, directory: Path, tiles: int) -> BenchTrace:
    """Write the job with its DP ranks repeated `tiles` times."""
    sizes = published.meta.sizes
    many = replace(sizes, dp=sizes.dp * tiles)
    table = pq.read_table(published.path)
    stages = table["stage"].to_numpy()
    pieces = []
    for stage in range(sizes.pp):
        rows = table.filter(pa.array(stages == stage))
        for tile in range(tiles):
            dp = rows["dp_rank"].to_numpy().astype(np.int64) + tile * sizes.dp
            # Ranks count TP and CP, then DP, then PP, as AR's do.
            rank = (stage * many.dp + dp) * sizes.tp * sizes.cp
            world = many.pp * many.dp * many.tp * many.cp
            piece = _replaced(rows, "dp_rank", dp, most=many.dp)
            pieces.append(_replaced(piece, "rank", rank, most=world))
    tiled = pa.concat_tables(pieces)
    path = directory / f"trace-tiled-{tiles}.parquet"
    pq.write_table(tiled, path)
    meta = replace(published.meta, sizes=many)
    return BenchTrace(f"AR, DP x {tiles}", path, meta, tiled.num_rows)


def _replaced(table: pa.Table, name: str, values: NDArray[np.int64], *, most: int) -> pa.Table:
    """Return the table with other values, in the column's type if it holds values up to `most`."""
    at = table.schema.get_field_index(name)
    kept = table.schema.field(at).type
    fits = most <= np.iinfo(kept.to_pandas_dtype()).max
    return table.set_column(at, name, pa.array(values, kept if fits else pa.int32()))


def _synthetic(directory: Path, tiles: int) -> BenchTrace:
    sizes = replace(_AR_SIZES, dp=_AR_SIZES.dp * tiles)
    job = JobModel(sizes=sizes, microbatches=_AR_MICROBATCHES, steps=_AR_STEPS)
    trace = synthesize(job, seed=1).trace
    path = directory / f"trace-{sizes.dp}.parquet"
    path.write_bytes(to_parquet(trace))
    name = "synthetic" if tiles == 1 else f"synthetic, DP x {tiles}"
    return BenchTrace(name, path, trace.meta, len(trace))

"""The two sets of columns that a body may have."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from app.analysis.trace.faults import refuse
from app.errors import Fault


@dataclass(frozen=True, slots=True)
class ColumnSet:
    """Columns of a body."""

    trace_format: str  # name of the format in the interfaces
    # Our name of each column → its name in the body. `rank dp pp tp step mb mc order` are
    # integers, `op` is text, `start` and `duration` are times.
    columns: Mapping[str, str]
    optional: frozenset[str]  # our names of columns that may be missing
    # Times are floating-point seconds from the earliest start of their step, else integer
    # nanoseconds of a host clock.
    seconds: bool


PUBLISHED: Final = ColumnSet(
    trace_format="parquet-published",
    columns={
        "rank": "rank",
        "dp": "dp_rank",
        "pp": "stage",
        "step": "step",
        "op": "optype",
        "mb": "mb_id",
        "mc": "mc",
        "order": "seq_id",
        "start": "start_ts",
        "duration": "duration",
    },
    optional=frozenset(),
    seconds=True,
)

# Operations without a microbatch or chunk say null or -1; a job without virtual stages may leave
# the columns out altogether.
NATIVE: Final = ColumnSet(
    trace_format="parquet",
    columns={
        "rank": "rank",
        "dp": "dp",
        "pp": "pp",
        "tp": "tp",
        "step": "step",
        "op": "op",
        "mb": "mb",
        "mc": "mc",
        "start": "start_ns",
        "duration": "dur_ns",
    },
    optional=frozenset({"tp", "mb", "mc"}),
    seconds=False,
)

# What either calls the names of operations.
OP_COLUMNS: Final = (PUBLISHED.columns["op"], NATIVE.columns["op"])

NULLABLE: Final = frozenset({"mb", "mc"})


def choose_layout(names: Collection[str]) -> ColumnSet:
    """Return the layout that columns called `names` are meant to be.

    Raises
    ------
    InvalidTraceError
        `trace.missing_column` with every missing column, `trace.duplicate_column`.
    """
    present = set(names)
    published = len(present & set(PUBLISHED.columns.values()))
    layout = PUBLISHED if published > len(present & set(NATIVE.columns.values())) else NATIVE
    missing = [
        Fault("missing_column", f"the column {name} is missing", column=name)
        for field, name in layout.columns.items()
        if name not in present and field not in layout.optional
    ]
    if missing:
        refuse(missing)
    seen = list(names)
    repeated = [
        Fault("duplicate_column", f"the column {name} is there twice", column=name)
        for name in layout.columns.values()
        if seen.count(name) > 1
    ]
    if repeated:
        refuse(repeated)
    return layout

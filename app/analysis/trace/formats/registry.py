"""All trace formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.analysis.trace.formats.arrow import ARROW
from app.analysis.trace.formats.kind import TraceFormat, Writer
from app.analysis.trace.formats.kineto import KINETO
from app.analysis.trace.formats.megascan import MEGASCAN
from app.analysis.trace.formats.ndjson import NDJSON
from app.analysis.trace.formats.ndtimeline import NDTIMELINE
from app.analysis.trace.formats.nsys import NSYS
from app.analysis.trace.formats.otel import OTEL
from app.analysis.trace.formats.parquet import PARQUET, PUBLISHED_PARQUET

# The first whose `sniff` says yes decodes a body, so NDJSON, which takes any compressed text, is
# the last.
FORMATS: Final[Mapping[str, TraceFormat]] = {
    known.name: known
    for known in (
        PARQUET,
        PUBLISHED_PARQUET,
        ARROW,
        NSYS,
        KINETO,
        NDTIMELINE,
        MEGASCAN,
        OTEL,
        NDJSON,
    )
}

# What `paceline convert` reads, by the names that it takes.
FOREIGN: Final[Mapping[str, TraceFormat]] = {
    name: known for name, known in FORMATS.items() if known.recorder is not None
}

# By the names that the command line takes.
WRITERS: Final[Mapping[str, Writer]] = {
    name: writer for known in FORMATS.values() for name, writer in known.writers.items()
}

"""All trace formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.analysis.trace.formats.kind import TraceFormat, Writer
from app.analysis.trace.formats.ndjson import NDJSON
from app.analysis.trace.formats.parquet import PARQUET, PUBLISHED_PARQUET

# The first whose `sniff` says yes decodes a body, so NDJSON, which takes any compressed text, is
# the last.
FORMATS: Final[Mapping[str, TraceFormat]] = {
    known.name: known for known in (PARQUET, PUBLISHED_PARQUET, NDJSON)
}

# By the names that the command line takes.
WRITERS: Final[Mapping[str, Writer]] = {
    name: writer for known in FORMATS.values() for name, writer in known.writers.items()
}

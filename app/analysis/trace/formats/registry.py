"""All trace formats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from app.analysis.trace.formats.arrow import ARROW
from app.analysis.trace.formats.head import Head
from app.analysis.trace.formats.kind import TraceFormat, Writer
from app.analysis.trace.formats.kineto import KINETO
from app.analysis.trace.formats.megascan import MEGASCAN
from app.analysis.trace.formats.ndjson import NDJSON
from app.analysis.trace.formats.ndtimeline import NDTIMELINE
from app.analysis.trace.formats.nsys import NSYS
from app.analysis.trace.formats.otel import OTEL
from app.analysis.trace.formats.parquet import PARQUET, PUBLISHED_PARQUET
from app.analysis.trace.formats.strangers import STRANGERS, Stranger
from app.analysis.trace.formats.xprof import XPROF
from app.errors import UnsupportedFormatError

# The first whose `sniff` says yes decodes a body.
FORMATS: Final[Mapping[str, TraceFormat]] = {
    known.name: known
    for known in (
        PARQUET,
        PUBLISHED_PARQUET,
        ARROW,
        NSYS,
        XPROF,
        KINETO,
        NDTIMELINE,
        MEGASCAN,
        OTEL,
        NDJSON,
    )
}

LINES: Final = NDJSON.name

# What `paceline convert` reads, by the names that it takes.
FOREIGN: Final[Mapping[str, TraceFormat]] = {
    name: known for name, known in FORMATS.items() if known.recorder is not None
}

# By the names that the command line takes.
WRITERS: Final[Mapping[str, Writer]] = {
    name: writer for known in FORMATS.values() for name, writer in known.writers.items()
}

# Of what is of no known format as much is shown.
_SHOWN_BYTES: Final = 24
_SHOWN_FIELDS: Final = 4


def format_of(head: Head) -> TraceFormat | None:
    """Return the format of a body, None where it is of none or holds no operations."""
    if not head.start or stranger_of(head) is not None:
        return None
    return next((known for known in FORMATS.values() if known.sniff(head)), None)


def format_named(name: str) -> TraceFormat:
    """Return the format of a name.

    Raises
    ------
    UnsupportedFormatError
    """
    if name not in FORMATS:
        names = ", ".join(FORMATS)
        raise UnsupportedFormatError(f"there is no format {name[:80]!r}; there are {names}")
    return FORMATS[name]


def stranger_of(head: Head) -> Stranger | None:
    """Return what a body is that holds no operations."""
    return next((known for known in STRANGERS if known.sniff(head)), None)


def why_unread(head: Head) -> str:
    """Return why `format_of` returned None, in words that follow "it is"."""
    stranger = stranger_of(head)
    if stranger is not None:
        return stranger.said
    if not head.start:
        return "empty"
    if head.compressed and not head.text:
        return "compressed, and its compression is damaged"
    outline = head.outline
    if outline is None or not (outline.fields or outline.events):
        begin = (head.text or head.start)[:_SHOWN_BYTES].decode("utf-8", "replace")
        return f"of no known format: it begins with {begin!r}"
    if outline.array:
        return "JSON of no known format: an array whose objects have " + _named(outline.events[0])
    return f"JSON of no known format: an object with {_named(outline.fields)}"


def _named(fields: Iterable[str]) -> str:
    names = [f"{field[:_SHOWN_BYTES]!r}" for field in fields]
    more = [f"{len(names) - _SHOWN_FIELDS} more"] if len(names) > _SHOWN_FIELDS else []
    names = [*names[:_SHOWN_FIELDS], *more]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else "no fields"

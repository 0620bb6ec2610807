"""Decoder of a body of any accepted format to a `Trace`; refusals name the row and the reason.

Formats
-------
- Parquet with the columns of the published traces (``dp_rank stage rank step optype start_ts
  duration seq_id mc mb_id``; float32 seconds from the earliest start of each step).
- Parquet with our columns (``rank dp pp [tp] step op [mb] [mc] start_ns dur_ns``; integers).
- Arrow IPC with our columns, as a stream or a file.
- Recordings of profilers and other programs: see `recordings`.
- NDJSON, plain, gzip or zstd: the header line ``{"schema": "paceline.trace/1", "meta": {…}}``,
  then one object a line with our columns as keys.

`formats.registry` lists them all. The first bytes of a body identify its format. A refused body
leaves nothing behind: there is no trace until every check has passed.

Codes
-----
Codes of `InvalidTraceError`, whose first ten faults have the row (Parquet) or line (NDJSON) and the
column, if the fault has one:

==================================  ===============================================================
``trace.no_rows``                   there is no operation
``trace.truncated``                 the body ends too early
``trace.corrupt``                   the bytes contradict their format, or each other
``trace.decompression_bomb``        decompresses to more than its values need, or to over 250 times
                                    its size; a zstd window over 8 MiB; too many gzip members
``trace.unsupported_encoding``      the Parquet text column is delta-encoded
``trace.missing_column``            a column is missing
``trace.duplicate_column``          a column is there twice
``trace.wrong_type``                a column, or a value of a line, has the wrong type
``trace.null``                      a value is missing
``trace.bad_line``                  a line is no JSON object, or has a key twice
``trace.line_too_long``             a line is over 1 MiB
``trace.not_finite``                a time is NaN or infinite
``trace.not_exact``                 floating point does not hold the integer of a column exactly
``trace.absolute_float_time``       floating-point starts do not count from their step's earliest
``trace.time_overflow``             a time is too large to compute with in int64
``trace.integer_overflow``          an integer does not fit in 64 bits
``trace.rank_out_of_range``         a rank beyond the job's sizes; likewise ``dp``, ``pp``,
                                    ``tp``, ``step``, ``microbatch``, ``model_chunk``, ``order``
``trace.rank_moved``                a rank has two DP ranks or two pipeline stages
``trace.duplicate_operation``       all steps repeat operations, or most rows repeat the last row
``trace.missing_microbatch``        virtual stages, but a computation names no microbatch
``trace.missing_model_chunk``       virtual stages, but a computation names no model chunk
``trace.bad_op_name``               an operation's name is empty, over-long or not printable
``trace.too_many_op_names``         over 256 names of operations
``trace.bad_json``                  the text of a foreign recording is no JSON
``trace.item_too_long``             an event of it is over 1 MiB (a batch of spans 8 MiB)
``trace.bad_event``                 an event does not follow its format
``trace.missing_key``               an event lacks a required key
``trace.unpaired_event``            the end event of a scope has no begin event
``trace.no_labels``                 no range has the label of an operation
``trace.no_backward``               a recording without labels holds no backward
``trace.bad_label``                 a label captures a text that is not a number
``trace.no_microbatches``           there are no spans of microbatches
``trace.unknown_rank``              the rank that recorded the file is unknown
==================================  ===============================================================

In foreign recordings, the row is the 0-based position of the event.

Codes of `BodyTooLargeError`: ``body.too_large`` (decompressed bytes), ``body.too_many_rows``,
``body.header_too_large``. Codes of `UnsupportedFormatError`: ``trace.unknown_format``,
``trace.unknown_schema``, ``trace.command_line_only``,
``trace.no_operations`` (a known kind of file without operations).
Codes of `InvalidMetadataError`: see `metadata`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from app.analysis.trace.compression import read_text
from app.analysis.trace.formats.kind import (
    OWN_MEDIA_TYPE,
    Decoded,
    Head,
    SenderHints,
    TraceFormat,
    begins_with,
    head_of,
)
from app.analysis.trace.formats.registry import (
    FORMATS,
    LINES,
    format_named,
    unsupported_file_of,
    why_unread,
)
from app.analysis.trace.limits import Limits, refuse_body
from app.analysis.trace.metadata import note_unmapped
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.recordings.files import UNNAMED, FileNames, names_of
from app.analysis.trace.recordings.labels import OwnRanges
from app.errors import InvalidLabelsError, UnsupportedFormatError

# First bytes of an NDJSON body with our header line.
_OWN_HEADER: Final = re.compile(rb'\{"schema": ?"paceline\.trace/')


def decode(  # noqa: PLR0913 - a sender's facts about a body
    body: Path | bytes,
    meta: SessionMeta | None,
    *,
    limits: Limits,
    content_type: str | None = None,
    format_name: str | None = None,
    local: bool = False,
    part: bool = False,
    own: OwnRanges | None = None,
    names: FileNames | None = None,
) -> Decoded:
    """Decode a body of any accepted format and check its values.

    Parameters
    ----------
    body : Path or bytes
        A file, or the bytes themselves.
    meta : SessionMeta or None
        The session's metadata; None if the NDJSON header has them.
    limits : Limits
        Limits on decompressed bytes and rows.
    content_type : str, optional
        The sender's media type; named in the refusal of an unknown format.
    format_name : str, optional
        Name of the format (`FORMATS`); by default the format is recognized from the bytes.
    local : bool
        The body is a file of this machine, not an upload: formats that a server refuses from
        clients are decoded as well.
    part : bool
        The body is a part of a session: its trace keeps the recorded names and order, which `merge`
        needs. Floating-point times need not begin with 0.
    own : OwnRanges, optional
        The job's labels for ranges of its own.
    names : FileNames, optional
        Ranks and steps from the names of the session's files; default for a local file: its name.

    Raises
    ------
    InvalidTraceError, InvalidMetadataError, UnsupportedFormatError, BodyTooLargeError
        See the table in this module.
    InvalidLabelsError
        `labels.no_ranges`: the format has no ranges.
    OSError
        The file cannot be read.
    """
    trace_format = recognize(
        body, limits=limits, content_type=content_type, format_name=format_name
    )
    if trace_format.local_only and not local:
        raise UnsupportedFormatError(
            f"{trace_format.title} is read by the command line only: paceline convert "
            f"{trace_format.name} FILES --out DIR, then paceline upload what it writes",
            code="trace.command_line_only",
        )
    if own is not None and not trace_format.own_ranges:
        titles = ", ".join(item.title for item in FORMATS.values() if item.own_ranges)
        message = (
            f"{trace_format.title} has no ranges that labels could name; those that have are "
            f"{titles}"
        )
        raise InvalidLabelsError(message, code="labels.no_ranges")
    if trace_format.decode_with_hints is None:
        decoded = trace_format.decode(body, meta, limits, part=part)
    else:
        if names is None and local and isinstance(body, Path):
            names = names_of([body.name])[body.name]
        hints = SenderHints(own, names or UNNAMED)
        decoded = trace_format.decode_with_hints(body, meta, limits, part=part, hints=hints)
    if not trace_format.recorder:
        return decoded
    noted = note_unmapped(decoded.trace.meta, decoded.unmapped)
    return replace(decoded, trace=replace(decoded.trace, meta=noted))


def recognize(
    body: Path | bytes,
    *,
    limits: Limits,
    content_type: str | None = None,
    format_name: str | None = None,
) -> TraceFormat:
    """Return the format of a body, recognized from its first bytes.

    A compressed body of no known format is read further, to report damage of its compression.

    Raises
    ------
    InvalidTraceError, UnsupportedFormatError
    """
    if format_name is None and isinstance(body, bytes) and begins_with(body, _OWN_HEADER):
        # Thousands of chunks may arrive at once; this shortcut takes a fortieth of the time of the
        # general recognition below.
        return FORMATS[LINES]
    head = head_of(body)
    if not head.start:
        refuse_body("no_rows", "the body is empty")
    trace_format = _format_of(head, content_type, format_name)
    if trace_format is None:
        if head.compressed and head.whole:
            # Read the whole text, so that damaged or cut-off compression is reported rather than an
            # unknown format.
            for _ in read_text(body, limits):
                pass
        sent_as = f" (sent as {content_type[:80]!r})" if content_type else ""
        titles = ", ".join(item.title for item in FORMATS.values())
        raise UnsupportedFormatError(f"the body is {why_unread(head)}{sent_as}; known are {titles}")
    return trace_format


def _format_of(head: Head, content_type: str | None, name: str | None) -> TraceFormat | None:
    named = None if name is None else format_named(name)
    unsupported = unsupported_file_of(head)
    if unsupported is not None:
        raise UnsupportedFormatError(f"this is {unsupported.advice}", code="trace.no_operations")
    if named is not None:
        return named
    for trace_format in FORMATS.values():
        own = trace_format.media_types[0]
        if trace_format.sniff(head) or (own == content_type and own.startswith(OWN_MEDIA_TYPE)):
            return trace_format
    # JSON lines that are sent with our media type but lack our keys are decoded as NDJSON: its
    # decoder names their fault.
    lines = head.outline is not None and not head.outline.array
    if lines and content_type in FORMATS[LINES].media_types:
        return FORMATS[LINES]
    return None

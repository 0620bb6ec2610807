"""A body of any accepted format → a `Trace`, or a refusal that says where and why.

Formats
-------
- Parquet with the columns of the published traces (``dp_rank stage rank step optype start_ts
  duration seq_id mc mb_id``; float32 seconds from the earliest start of each step).
- Parquet with our columns (``rank dp pp [tp] step op [mb] [mc] start_ns dur_ns``; integers).
- Arrow IPC with our columns, as a stream or a file.
- What other programs record: see `recordings`.
- NDJSON, plain, gzip or zstd: the header line ``{"schema": "paceline.trace/1", "meta": {…}}``,
  then one object a line with our columns as keys.

`formats.registry` has them all. Which one it is, the bytes say themselves. A refused body leaves
nothing behind: there is no trace until every check has passed.

Codes
-----
Of `InvalidTraceError`, each with the row (Parquet) or line (NDJSON) and the column where it has
one, for the first ten faults:

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
``trace.absolute_float_time``       floating-point starts do not count from their step's earliest
``trace.time_overflow``             a time is too large to compute with in int64
``trace.integer_overflow``          an integer does not fit in 64 bits
``trace.rank_out_of_range``         a rank that the sizes do not have; likewise ``dp``, ``pp``,
                                    ``tp``, ``step``, ``microbatch``, ``model_chunk``, ``order``
``trace.rank_moved``                a rank appears with two DP ranks or stages
``trace.duplicate_operation``       all steps have operations twice, or most rows are the one before
``trace.missing_microbatch``        virtual stages, but computation without its microbatch
``trace.missing_model_chunk``       virtual stages, but computation without its model chunk
``trace.bad_op_name``               an operation's name is empty, over-long or not printable
``trace.too_many_op_names``         over 256 names of operations
``trace.bad_json``                  the text of a foreign recording is no JSON
``trace.item_too_long``             an event of it is over 1 MiB (a batch of spans 8 MiB)
``trace.bad_event``                 an event is not as its format has it
``trace.missing_key``               an event lacks what it must have
``trace.unpaired_event``            a scope ends that did not begin
``trace.no_labels``                 no range says which operation it is
``trace.no_microbatches``           there are no spans of microbatches
``trace.unknown_rank``              nothing says which rank recorded it
==================================  ===============================================================

Of foreign recordings the row is the 0-based place of the event.

Of `BodyTooLargeError`: ``body.too_large`` (decompressed bytes), ``body.too_many_rows``,
``body.header_too_large``. Of `UnsupportedFormatError`: ``trace.unknown_format``,
``trace.unknown_schema``, ``trace.command_line_only``, ``trace.protobuf``. Of
`InvalidMetadataError`: see `metadata`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from app.analysis.trace.faults import refuse_body
from app.analysis.trace.formats.head import Head, head_of
from app.analysis.trace.formats.kind import OWN_MEDIA_TYPE, Decoded, TraceFormat
from app.analysis.trace.formats.registry import FORMATS
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.unmapped import saying
from app.errors import UnsupportedFormatError


def decode(  # noqa: PLR0913 - what a sender says of a body
    body: Path | bytes,
    meta: SessionMeta | None,
    *,
    limits: Limits,
    content_type: str | None = None,
    format_name: str | None = None,
    local: bool = False,
    part: bool = False,
) -> Decoded:
    """Decode and check a body.

    Parameters
    ----------
    body : Path or bytes
        A file, or the bytes themselves.
    meta : SessionMeta or None
        The session's metadata; None where the NDJSON header has them.
    limits : Limits
        What the body may decompress to.
    content_type : str, optional
        What the sender calls the format; named in the refusal of an unknown one.
    format_name : str, optional
        The name of its format (`FORMATS`), where that is known; else the bytes say it.
    local : bool
        The file is one of the machine's own, not one that was sent: then formats are read as well
        that a server accepts from no client.
    part : bool
        The body is a part of a session: its trace keeps the recorded names and order, which
        `merge` needs. Floating-point times need not begin with 0.

    Raises
    ------
    InvalidTraceError, InvalidMetadataError, UnsupportedFormatError, BodyTooLargeError
        See the table in this module.
    OSError
        The file cannot be read.
    """
    head = head_of(body)
    if not head.start:
        refuse_body("no_rows", "the body is empty")
    known = _format_of(head, content_type, format_name)
    if known.local_only and not local:
        raise UnsupportedFormatError(
            f"{known.title} is read by the command line only: paceline convert {known.name} FILES "
            "--out DIR, then paceline upload what it writes",
            code="trace.command_line_only",
        )
    decoded = known.decode(body, meta, limits, part=part)
    if not known.recorder:
        return decoded
    said = saying(decoded.trace.meta, decoded.unmapped)
    return replace(decoded, trace=replace(decoded.trace, meta=said))


def _format_of(head: Head, content_type: str | None, name: str | None) -> TraceFormat:
    if name is not None:
        if name in FORMATS:
            return FORMATS[name]
        names = ", ".join(FORMATS)
        message = f"there is no format {name[:80]!r}; there are {names}"
        raise UnsupportedFormatError(message)
    for known in FORMATS.values():
        own = known.media_types[0]
        if known.sniff(head) or (own == content_type and own.startswith(OWN_MEDIA_TYPE)):
            return known
    said = f" (sent as {content_type[:80]!r})" if content_type else ""
    titles = ", ".join(known.title for known in FORMATS.values())
    raise UnsupportedFormatError(f"the body is in none of the known formats{said}: {titles}")

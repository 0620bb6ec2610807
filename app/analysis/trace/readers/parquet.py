"""Reader of Parquet bodies with the published columns or ours.

Rows, types and pages are checked in the footer and the page headers before anything is decoded.
Only known columns are read, operation names through their dictionary, in batches that are checked
before the next is read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from app.analysis.trace.assemble import Assembler, take_one_behind
from app.analysis.trace.columns import (
    OP_COLUMNS,
    ColumnSet,
    batch_columns,
    check_types,
    choose_layout,
)
from app.analysis.trace.limits import Limits, Places, refuse_body
from app.analysis.trace.model import SessionMeta, Trace
from app.analysis.trace.operation_names import OpNames
from app.analysis.trace.readers.parquet_headers import Footer, check_pages, read_footer
from app.errors import BodyTooLargeError

# Small enough that a batch of all columns stays in a core's cache.
BATCH_ROWS: Final = 1 << 17

T = TypeVar("T")

# What Arrow's readers raise on bytes that are not what they claim; see tests/fuzz.
_UNREADABLE: Final = (pa.ArrowException, OSError, ValueError, KeyError, IndexError, OverflowError)


def decode_parquet(
    body: Path | bytes, meta: SessionMeta, limits: Limits, *, part: bool
) -> tuple[Trace, ColumnSet]:
    """Decode and check a Parquet body; see `decode` for what it raises."""
    with _open(body) as source:
        footer = read_footer(source, limits)
        file = _read(lambda: _file(source, footer))
        schema = _read(lambda: file.schema_arrow)
        layout = choose_layout(schema.names)
        check_types(schema, layout)
        wanted = [name for name in layout.columns.values() if name in schema.names]
        if footer.rows > limits.max_rows:
            message = f"the body claims {footer.rows} rows, the limit is {limits.max_rows}"
            raise BodyTooLargeError(message, code="body.too_many_rows")
        check_pages(source, footer, wanted, limits)
        places = Places(layout.columns)
        assembler = Assembler(meta, layout, places, limits, footer.rows, part=part)
        names = OpNames(places)

        def take(batch: pa.RecordBatch) -> None:
            if batch.num_rows:
                columns, op = batch_columns(batch, layout, places, assembler.rows)
                assembler.add(columns, names.codes(op, assembler.rows))

        # Closed before the source is, also when a batch is refused.
        with closing(_batches(file, wanted)) as batches:
            if footer.rows > BATCH_ROWS:
                take_one_behind(batches, take)
            else:
                for batch in batches:
                    take(batch)
        return assembler.finish(names.names), layout


def _open(body: Path | bytes) -> pa.NativeFile:
    return pa.OSFile(str(body), "r") if isinstance(body, Path) else pa.BufferReader(body)


def _file(source: pa.NativeFile, footer: Footer) -> pq.ParquetFile:
    """Open a body; opened once more to learn its schema first, it would be described twice."""
    names = {chunk.name for chunk in footer.chunks if chunk.is_text}
    return pq.ParquetFile(
        source,
        read_dictionary=[name for name in OP_COLUMNS if name in names],
        page_checksum_verification=True,
    )


def _batches(file: pq.ParquetFile, wanted: list[str]) -> Generator[pa.RecordBatch, None, None]:
    batches = _read(
        lambda: file.iter_batches(batch_size=BATCH_ROWS, columns=wanted, use_threads=False)
    )
    while (batch := _read(lambda: next(batches, None))) is not None:
        yield batch


def _read(action: Callable[[], T]) -> T:
    """Do what reads untrusted bytes; every way in which Arrow gives up is one refusal."""
    try:
        return action()
    except _UNREADABLE as error:
        _refuse_corrupt(error)


def _refuse_corrupt(error: Exception) -> NoReturn:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    refuse_body("corrupt", f"the Parquet body cannot be read: {reason}")

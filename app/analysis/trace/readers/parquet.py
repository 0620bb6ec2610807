"""Reader of Parquet bodies with the published columns or our columns.

Rows, types and pages are checked in the footer and the page headers before any value is decoded.
Only known columns are read, operation names through their dictionary, in batches that are checked
before the next batch is read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from app.analysis.trace.assemble import Assembler, consume_on_second_core
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
from app.analysis.trace.readers.parquet_headers import check_pages, read_footer
from app.errors import BodyTooLargeError

# Rows decoded at once: few enough that a batch of all columns stays in a core's cache.
BATCH_ROWS: Final = 1 << 17

T = TypeVar("T")

# Errors that Arrow's readers raise on malformed bytes, as found by tests/fuzz.
_UNREADABLE: Final = (pa.ArrowException, OSError, ValueError, KeyError, IndexError, OverflowError)


def decode_parquet(
    body: Path | bytes, meta: SessionMeta, limits: Limits, *, part: bool
) -> tuple[Trace, ColumnSet]:
    """Decode a Parquet body and check its values; `decode` lists the errors."""
    opened = pa.OSFile(str(body), "r") if isinstance(body, Path) else pa.BufferReader(body)
    with opened as source:
        footer = read_footer(source, limits)
        # Text columns are taken from the parsed footer: opening the file for its schema would parse
        # the footer again.
        texts = {chunk.name for chunk in footer.chunks if chunk.is_text}
        file = _read(
            lambda: pq.ParquetFile(
                source,
                read_dictionary=[name for name in OP_COLUMNS if name in texts],
                page_checksum_verification=True,
            )
        )
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

        # Close the batches before their source, also if a batch is refused.
        with closing(_batches(file, wanted)) as batches:
            if footer.rows > BATCH_ROWS:
                consume_on_second_core(batches, take)
            else:
                for batch in batches:
                    take(batch)
        return assembler.finish(names.names), layout


def _batches(file: pq.ParquetFile, wanted: list[str]) -> Generator[pa.RecordBatch, None, None]:
    batches = _read(
        lambda: file.iter_batches(batch_size=BATCH_ROWS, columns=wanted, use_threads=False)
    )
    while (batch := _read(lambda: next(batches, None))) is not None:
        yield batch


def _read(action: Callable[[], T]) -> T:
    """Return the result of a read of untrusted bytes; refuse the body if Arrow raises an error."""
    try:
        return action()
    except _UNREADABLE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        refuse_body("corrupt", f"the Parquet body cannot be read: {reason}")

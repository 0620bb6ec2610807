from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from app.analysis.trace.decode import decode
from app.analysis.trace.formats.head import head_of
from app.analysis.trace.formats.kind import OWN_MEDIA_TYPE, TraceFormat
from app.analysis.trace.formats.registry import FOREIGN, FORMATS, WRITERS
from app.errors import InvalidMetadataError, InvalidTraceError, UnsupportedFormatError
from tests.unit.analysis.trace import bodies

if TYPE_CHECKING:
    from collections.abc import Callable


OWN = {name: known for name, known in FORMATS.items() if known.recorder is None}


@pytest.mark.parametrize("known", OWN.values(), ids=OWN)
def test_what_a_format_writes_is_recognized_as_that_format(known: TraceFormat) -> None:
    trace = bodies.decoded(bodies.ndjson(), None)

    assert known.writers
    for writer in known.writers.values():
        decoded = decode(writer.encode(trace), trace.meta, limits=bodies.LIMITS)
        assert decoded.trace_format == known.name
        assert decoded.trace.step_relative == known.step_relative
        assert writer.file_name.removesuffix(".gz").removesuffix(".zst").endswith(known.suffixes)


def test_no_two_formats_share_a_title_or_a_writer() -> None:
    assert len({known.title for known in FORMATS.values()}) == len(FORMATS)
    assert len(WRITERS) == sum(len(known.writers) for known in FORMATS.values())


def test_what_others_record_is_what_convert_reads() -> None:
    assert set(FOREIGN) == {"kineto", "ndtimeline", "megascan", "nsys", "otel"}
    assert set(FOREIGN) == set(FORMATS) - set(OWN)


BEGINNINGS = {
    "kineto": b'{"schemaVersion": 1, "deviceProperties": [',
    "ndtimeline": b'[{"name": "gc", "args": {"rank": 0, "step": 1, "tp": 0, "pp": 0}, "ph": "X"}',
    "megascan": b'[{"name": "iteration begin", "ph": "i", "ts": 28, "args": {"iteration": 0}}',
    "otel": b'{"resourceSpans":[{"resource":{"attributes":[',
    "nsys": b"SQLite format 3\x00",
}


@pytest.mark.parametrize("known", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_what_others_record_is_recognized(
    known: TraceFormat, compress: Callable[[bytes], bytes]
) -> None:
    if compress is not bytes and not known.text:
        return
    head = head_of(compress(BEGINNINGS[known.name]))
    assert next(one.name for one in FORMATS.values() if one.sniff(head)) == known.name


@pytest.mark.parametrize("known", FOREIGN.values(), ids=FOREIGN)
def test_a_format_that_is_named_is_not_looked_for(known: TraceFormat) -> None:
    own = known.media_types[0]
    for name, content_type in ((known.name, None), (None, own)):
        if name is None and not own.startswith(OWN_MEDIA_TYPE):
            continue
        with pytest.raises((InvalidTraceError, InvalidMetadataError, UnsupportedFormatError)) as no:
            decode(
                b"[]",
                bodies.META,
                limits=bodies.LIMITS,
                format_name=name,
                content_type=content_type,
            )
        assert no.value.stable_code in {
            "trace.no_labels",
            "trace.no_rows",
            "trace.no_microbatches",
            "trace.command_line_only",
        }


def test_a_name_that_no_format_has_is_refused() -> None:
    with pytest.raises(UnsupportedFormatError, match="kineto"):
        decode(b"[]", bodies.META, limits=bodies.LIMITS, format_name="perfetto")


def test_formats_of_one_suffix_have_one_media_type_and_one_decoder() -> None:
    for one in OWN.values():
        for other in OWN.values():
            if set(one.suffixes) & set(other.suffixes):
                assert one.media_types == other.media_types
                assert one.decode == other.decode

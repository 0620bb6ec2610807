from __future__ import annotations

import pytest

from app.analysis.trace.decode import decode
from app.analysis.trace.formats.kind import TraceFormat
from app.analysis.trace.formats.registry import FORMATS, WRITERS
from tests.unit.analysis.trace import bodies


@pytest.mark.parametrize("known", FORMATS.values(), ids=FORMATS)
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


def test_formats_of_one_suffix_have_one_media_type_and_one_decoder() -> None:
    for one in FORMATS.values():
        for other in FORMATS.values():
            if set(one.suffixes) & set(other.suffixes):
                assert one.media_types == other.media_types
                assert one.decode == other.decode

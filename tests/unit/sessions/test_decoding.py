"""Bodies are decoded once they are known to be new."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from app.analysis.trace.encode import to_arrow, to_ndjson_gz, to_parquet
from app.analysis.trace.formats.own import NDJSON, PARQUET
from app.errors import InvalidTraceError, UnsupportedFormatError
from app.platform import killable
from app.platform.settings import Settings
from app.sessions.body import Body
from app.sessions.decoding import decoding
from tests.support.sessions import small_trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from app.analysis.trace.formats.kind import TraceFormat
    from app.analysis.trace.model import Trace

SETTINGS = Settings(ingest_concurrency=1)


def body(source: Path | bytes) -> Body:
    content = source if isinstance(source, bytes) else source.read_bytes()
    return Body(source, len(content), None, None, small_trace().meta)


@pytest.mark.parametrize("encode", [to_parquet, to_ndjson_gz])
@pytest.mark.parametrize("in_memory", [False, True], ids=["file", "memory"])
def test_a_body_is_decoded_once_and_stored_as_it_came(
    encode: Callable[[Trace], bytes], tmp_path: Path, *, in_memory: bool
) -> None:
    content = encode(small_trace())
    path = tmp_path / "body"
    path.write_bytes(content)
    with decoding(SETTINGS, body(content if in_memory else path)) as decoded:
        assert len(decoded.result().decoded.trace) == len(small_trace())
        assert decoded.result() is decoded.result()
        assert b"".join(decoded.as_it_came()) == content


@pytest.mark.parametrize("in_memory", [False, True], ids=["file", "memory"])
def test_the_fault_of_a_body_reaches_the_caller(tmp_path: Path, *, in_memory: bool) -> None:
    content = to_parquet(small_trace())[:-100]
    path = tmp_path / "body"
    path.write_bytes(content)
    source = content if in_memory else path
    # The body is stored already, so nothing is decoded.
    with decoding(SETTINGS, body(source)):
        pass
    with decoding(SETTINGS, body(source)) as decoded, pytest.raises(InvalidTraceError):
        decoded.result()


def test_a_decoding_ends_with_its_context(tmp_path: Path) -> None:
    path = tmp_path / "body"
    path.write_bytes(to_parquet(small_trace()))
    with decoding(SETTINGS, body(path)) as decoded:
        decoded.begin()
    with pytest.raises(RuntimeError, match="closed"):
        decoded.result()


def test_a_body_is_not_decoded_before_it_is_known_to_be_new(tmp_path: Path) -> None:
    missing = Body(tmp_path / "none", 1, b"digest", None, None)
    with decoding(SETTINGS, missing):
        pass
    with decoding(SETTINGS, missing) as decoded, pytest.raises(FileNotFoundError):
        decoded.result()


@pytest.mark.parametrize(
    ("encode", "kept"),
    [(to_parquet, PARQUET), (to_ndjson_gz, NDJSON), (to_arrow, None)],
    ids=["parquet", "gzip", "arrow"],
)
def test_what_is_as_small_as_it_would_be_packed_stays_as_it_came(
    encode: Callable[[Trace], bytes], kept: TraceFormat | None
) -> None:
    with decoding(SETTINGS, body(encode(small_trace()))) as decoded:
        assert decoded.kept is kept


def test_a_body_in_no_known_format_is_refused_before_it_is_decoded() -> None:
    with decoding(SETTINGS, body(b"neither")) as decoded, pytest.raises(UnsupportedFormatError):
        _ = decoded.kept


@pytest.mark.parametrize("mib", [64, 1024, 2048])
def test_a_small_body_is_read_with_little_memory(mib: int) -> None:
    # A process that has read before has reserved its addresses already.
    killable.end()
    settings = Settings(analysis_memory_limit_kib=mib * 1024)
    with decoding(settings, body(to_parquet(small_trace()))) as decoded:
        assert len(decoded.result().decoded.trace) == len(small_trace())

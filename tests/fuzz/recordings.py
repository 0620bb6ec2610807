"""Damaged recordings of other programs: each is read or refused with a code and a place."""

# ruff: noqa: PT017 - an error is one of two good ends here

from __future__ import annotations

import codecs
import gzip
import json
import re
from pathlib import Path
from typing import Final

import numpy as np
import zstandard

from app.analysis.trace.decode import decode
from app.analysis.trace.encode import to_arrow
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import SessionMeta, Sizes
from app.errors import PacelineError
from tests.fuzz.test_bodies import assert_sound, edited
from tests.unit.analysis.trace import bodies
from tests.unit.analysis.trace.recordings import (
    test_kineto_groups,
    test_megascan,
    test_ndtimeline,
    test_otlp,
)
from tests.unit.analysis.trace.recordings import (
    test_kineto_processes as test_processes,
)
from tests.unit.analysis.trace.recordings.kineto_files import device_file, host_steps, two_stages
from tests.unit.analysis.trace.recordings.xplane_files import tpu_hosts

LIMITS = Limits(max_decompressed_bytes=16 << 20, max_rows=20_000, max_header_bytes=1 << 16)
META = SessionMeta(Sizes(dp=2, pp=2))

BODIES: dict[str, tuple[str, bytes]] = {
    "kineto": ("kineto", host_steps(1).body()),
    "kineto with a device": ("kineto", device_file().body()),
    "kineto, compressed": ("kineto", gzip.compress(two_stages(0, steps=1).body(), mtime=0)),
    "kineto, a bare array": (
        "kineto",
        json.dumps(json.loads(host_steps(1).body())["traceEvents"]).encode(),
    ),
    "kineto, zstd with a mark": (
        "kineto",
        zstandard.ZstdCompressor().compress(codecs.BOM_UTF8 + two_stages(1, steps=1).body()),
    ),
    "kineto, two ranks": ("kineto", test_processes.merged(*test_processes.WAYS["[Rank 1] 7"])),
    "kineto, a name without escapes": (
        "kineto",
        host_steps(1).body().replace(b'"PP:1B0"', b'"{"a": 1}, {"b": "c"}"'),
    ),
    "kineto, no groups": (
        "kineto",
        test_kineto_groups.ungrouped(3, 4, [1], {"mesh_pp": 2, "mesh_dp": 2}).body(),
    ),
    "ndtimeline": ("ndtimeline", test_ndtimeline.FORMS["timeline"].encode()),
    "ndtimeline, records": ("ndtimeline", test_ndtimeline.FORMS["a record a line"].encode()),
    "megascan": ("megascan", json.dumps(test_megascan.aggregated()).encode()),
    "megascan, a rank": ("megascan", json.dumps(test_megascan.own()).encode()),
    "otel": ("otel", test_otlp.body(test_otlp.step())),
    "otel, protobuf": ("otel", test_otlp.request(test_otlp.body(test_otlp.step()))),
    "otel, of a collector": (
        "otel",
        test_otlp.prefixed(*map(test_otlp.request, test_otlp.TWO_RANKS)),
    ),
    "xprof, planes": ("xprof", tpu_hosts(hosts=1, devices=2, steps=2)[0].body()),
    "xprof, json": ("xprof", tpu_hosts(hosts=1, devices=2, steps=2)[0].trace_json()),
    "arrow": ("arrow", to_arrow(bodies.decoded(bodies.ndjson()))),
    "arrow, file": ("arrow", bodies.arrow_file()),
}
ODD = (
    b"null",
    b"NaN",
    b"-",
    b"1e999999999",
    b"9" * 5000,
    b"[" * 3000,
    b'"' + b"x" * 300,
    b"{}",
    b"[]",
    b"true",
    b"\xff",
    b"\x00",
    b"}{",
    b'"ph":"E"',
    b'"ts":-1',
)
# Places at which a value of JSON or a byte of a binary field may begin.
_PLACES: Final = re.compile(rb"[:\[,{]")
_VALUES: Final = (
    *(b"null", b"true", b"-1", b"0", b"1e400", b"1e-400", b"NaN", b"inf", b"-Infinity"),
    *(b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"9007199254740993"),
    *(b'"12.5"', b'"x"', b'""', b"[]", b"{}", b"[[1]]", b'{"a":{"b":null}}', b"1.5", b'"\\ud800"'),
)


def damaged(seed: int) -> tuple[str | None, bytes]:
    """Return one damaged body and its declared format, determined by the seed."""
    rng = np.random.default_rng(seed)
    kind, body = list(BODIES.values())[int(rng.integers(len(BODIES)))]
    for _ in range(int(rng.integers(1, 4))):
        way = int(rng.integers(5))
        place = int(rng.integers(len(body) + 1))
        if way == 0:
            body = edited(body, [(place, int(rng.integers(12)), ODD[int(rng.integers(len(ODD)))])])
        elif way == 1:
            body = edited(body, [(place, int(rng.integers(6)), rng.bytes(int(rng.integers(6))))])
        elif way == 2:
            # A part of the body is repeated, as in concatenated files.
            body = body[:place] + body[int(rng.integers(place + 1)) :]
        else:
            body = _with_value(body, place, _VALUES[int(rng.integers(len(_VALUES)))])
    if rng.random() < 1 / 8:
        body = body[: int(rng.integers(len(body) + 1))]
    return (kind if rng.random() < 1 / 2 else None), body


def _with_value(body: bytes, place: int, value: bytes) -> bytes:
    """Replace the next JSON value."""
    begin = _PLACES.search(body, place)
    if begin is None:
        return body
    end = re.compile(rb"[,}\]]").search(body, begin.end())
    return body[: begin.end()] + value + (body[end.start() :] if end else b"")


def outcome(name: str | None, body: Path | bytes, *, local: bool = False) -> str:
    """Decode a body with and without metadata; return "read" or the code of its refusal.

    Raises
    ------
    Exception
        Any other exception is a fault in a reader.
    """
    ends = []
    for meta in (META, None):
        try:
            decoded = decode(body, meta, limits=LIMITS, format_name=name, local=local)
        except PacelineError as error:
            assert error.stable_code.startswith(("trace.", "metadata.", "body."))
            assert len(error.faults) <= 10
            json.dumps([fault.as_dict() for fault in error.faults])
            ends.append(error.stable_code)
        else:
            assert_sound(decoded.trace)
            assert all(one.count > 0 for one in decoded.unmapped)
            ends.append("read")
    return "read" if "read" in ends else ends[0]

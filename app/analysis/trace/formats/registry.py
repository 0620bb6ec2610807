"""All trace formats, and known kinds of files without operations with advice for their senders."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from app.analysis.trace.formats.foreign import KINETO, MEGASCAN, NDTIMELINE, NSYS, OTEL, XPROF
from app.analysis.trace.formats.kind import Head, TraceFormat, Writer
from app.analysis.trace.formats.own import ARROW, NDJSON, PARQUET, PUBLISHED_PARQUET
from app.errors import UnsupportedFormatError

_PICKLE: Final = b"\x80"


@dataclass(frozen=True, slots=True)
class UnsupportedFile:
    """A known kind of file without operations."""

    title: str  # noun with its article
    why: str  # its lack, and what to send instead; a relative clause
    sniff: Callable[[Head], bool]

    @property
    def advice(self) -> str:
        """Return the kind of file and the advice as the end of a sentence."""
        return f"{self.title}, {self.why}"


def _is_flight_recorder(head: Head) -> bool:
    pickled = head.start.startswith(_PICKLE) and b"entries" in head.start and b"pg_" in head.start
    return pickled or (head.has_field("entries") and head.has_field("pg_config", "pg_status"))


def _is_chakra(head: Head) -> bool:
    graph = head.has_field("nodes") and head.has_field("schema", "pid")
    return graph or _CHAKRA_PROTOBUF.match(head.text) is not None


# Beginning of a trace in protobuf: length of the first message, and its version, such as 0.0.4.
_CHAKRA_PROTOBUF: Final = re.compile(
    rb"[\x05-\xff][\x00-\x7f]?\n[\x05-\x10][0-9]+\.[0-9]+\.[0-9]+", re.DOTALL
)


def _is_autograd_profiler(head: Head) -> bool:
    events = head.outline.events if head.outline is not None and head.outline.array else ()
    return any(event.get("pid") in _AUTOGRAD_PROCESSES for event in events)


# Names of the two processes that ``torch.autograd.profiler`` writes without Kineto.
_AUTOGRAD_PROCESSES: Final = ("CPU functions", "CUDA functions")


def _is_rocprof(head: Head) -> bool:
    if head.has_field("rocprofiler-sdk-tool"):
        return True
    events = head.outline.events if head.outline is not None else ()
    args_of = (event.get("args") for event in events)
    return any(isinstance(args, dict) and "BeginNs" in args and "EndNs" in args for args in args_of)


def _is_ascend(head: Head) -> bool:
    if head.outline is None:
        return False
    if not _ASCEND_FLOWS.isdisjoint(head.outline.event_texts("cat")):
        return True
    args_of = (event.get("args") for event in head.outline.events if event.get("ph") == "M")
    names = (args.get("name") for args in args_of if isinstance(args, dict))
    return any(isinstance(name, str) and name in _ASCEND_PROCESSES for name in names)


# Marks of a profile of Ascend devices: categories of the flow events that link operators to
# kernels, and names of processes.
_ASCEND_FLOWS: Final = frozenset({"async_npu", "async_task_queue"})
_ASCEND_PROCESSES: Final = frozenset({"Ascend Hardware", "CANN", "Overlap Analysis"})
_PROFILE: Final = "record the ranks with torch.profiler and send its files"

UNSUPPORTED_FILES: Final = (
    UnsupportedFile(
        "a dump of PyTorch's flight recorder",
        "which holds no operations, only the collectives before a hang: paceline hang reads it; "
        f"for a session {_PROFILE}",
        _is_flight_recorder,
    ),
    UnsupportedFile(
        "an execution trace of PyTorch (Chakra)",
        f"which holds the graph of a rank's operators and no timeline: {_PROFILE}",
        _is_chakra,
    ),
    UnsupportedFile(
        "a trace of PyTorch's autograd profiler",
        "which holds operators and neither their kernels' launches nor steps: "
        f"{_PROFILE}, which PyTorch has since 1.8",
        _is_autograd_profiler,
    ),
    UnsupportedFile(
        "Jaeger's JSON",
        "which is not OTLP: let the file exporter of an OpenTelemetry collector write the spans as "
        "JSON, and send that file",
        lambda head: (
            head.has_field("data") and b'"traceID"' in head.text and b'"spans"' in head.text
        ),
    ),
    UnsupportedFile(
        "a trace of rocprof",
        f"which says nothing of training steps and operations: {_PROFILE}, which records AMD's "
        "GPUs as well",
        _is_rocprof,
    ),
    UnsupportedFile(
        "a timeline of Ascend's profiler (torch_npu)",
        "whose kernels are joined to what launched them in a way that is not read: send the "
        "operations of the job as NDJSON or Parquet",
        _is_ascend,
    ),
    UnsupportedFile(
        "a log of NCCL Inspector",
        f"which holds collectives and no computations: {_PROFILE}",
        lambda head: head.has_field("coll_perf") and head.has_field("header", "metadata"),
    ),
)


# Ordered: a body is decoded as the first format whose `sniff` accepts it.
FORMATS: Final[Mapping[str, TraceFormat]] = {
    trace_format.name: trace_format
    for trace_format in (
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

# Formats of other programs by the names that `paceline convert` has for them.
FOREIGN: Final[Mapping[str, TraceFormat]] = {
    name: trace_format
    for name, trace_format in FORMATS.items()
    if trace_format.recorder is not None
}

# Encoders by the format names of ``paceline synth --format``.
WRITERS: Final[Mapping[str, Writer]] = {
    name: writer
    for trace_format in FORMATS.values()
    for name, writer in trace_format.writers.items()
}

# First bytes of a body of unknown format that its refusal quotes.
_SHOWN_BYTES: Final = 24
_SHOWN_FIELDS: Final = 4


def format_of(head: Head) -> TraceFormat | None:
    """Return the format of a body; None if it is unknown or has no operations."""
    if not head.start or unsupported_file_of(head) is not None:
        return None
    return next(
        (trace_format for trace_format in FORMATS.values() if trace_format.sniff(head)), None
    )


def format_named(name: str) -> TraceFormat:
    """Return the format called `name`.

    Raises
    ------
    UnsupportedFormatError
    """
    if name not in FORMATS:
        names = ", ".join(FORMATS)
        raise UnsupportedFormatError(f"there is no format {name[:80]!r}; there are {names}")
    return FORMATS[name]


def unsupported_file_of(head: Head) -> UnsupportedFile | None:
    """Return the known kind of file without operations that the body is; None for other bodies."""
    return next((kind for kind in UNSUPPORTED_FILES if kind.sniff(head)), None)


def why_unread(head: Head) -> str:
    """Return why `format_of` returned None, as the end of a sentence that begins with "it is"."""
    unsupported = unsupported_file_of(head)
    if unsupported is not None:
        return unsupported.advice
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

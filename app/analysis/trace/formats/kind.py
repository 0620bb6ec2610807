"""What a trace format is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from app.analysis.trace.formats.head import Head
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import SessionMeta, Trace
from app.analysis.trace.unmapped import Unmapped

OWN_MEDIA_TYPE: Final = "application/vnd.paceline."


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded body."""

    trace: Trace
    trace_format: str  # the name of its format
    unmapped: tuple[Unmapped, ...] = ()  # what else it holds, that is no operation


class Decode(Protocol):
    """What decodes bodies of a format.

    What only one format needs is imported when a body of it comes: most processes meet one format,
    and reading all of them takes a good part of the time that a small trace takes.
    """

    def __call__(
        self, body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool
    ) -> Decoded:
        """Decode and check a body; see `app.analysis.trace.decode.decode`."""


@dataclass(frozen=True, slots=True)
class Writer:
    """How a trace is written in a format."""

    file_name: str  # of the file that the command line writes
    encode: Callable[[Trace], bytes]  # returns the bytes of a trace


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A format in which traces are accepted."""

    name: str  # as sessions carry it
    title: str  # as people call it
    # What senders call it; the first one is ours. One that begins with `OWN_MEDIA_TYPE` says for
    # sure which format it is, others only that it may be this one.
    media_types: tuple[str, ...]
    suffixes: tuple[str, ...]  # of its files, without that of a compression
    # Takes the beginning of a body and returns whether it is of this format. Formats that begin
    # alike have the same `sniff` and the same `decode`, which tells them apart.
    sniff: Callable[[Head], bool]
    decode: Decode
    text: bool = False  # it is text, which may come compressed with gzip or zstd
    # Its times count from the earliest start of their step, so that nothing is known across
    # steps; its chunks do not mix with those of other formats.
    step_relative: bool = False
    # By the name that ``paceline synth --format`` takes; empty where nothing writes it.
    writers: Mapping[str, Writer] = field(default_factory=dict)
    # What writes it, where that is another program: then ``paceline convert`` reads it.
    recorder: str | None = None
    # Its files are opened on the machine of who has them only, never by a server.
    local_only: bool = False

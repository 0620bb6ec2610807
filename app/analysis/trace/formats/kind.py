"""What a trace format is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from app.analysis.trace.formats.head import Head
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import SessionMeta, Trace
from app.analysis.trace.recordings.files.names import UNNAMED, FileNames
from app.analysis.trace.unmapped import Unmapped

if TYPE_CHECKING:
    from app.analysis.trace.recordings.own.ranges import OwnRanges

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
class Told:
    """What a sender says about a recording in addition to its metadata."""

    own: OwnRanges | None = None  # what the job calls ranges of its own
    names: FileNames = UNNAMED  # what the names of its session's files say


NOTHING_TOLD: Final = Told()


class DecodeTold(Protocol):
    """What decodes bodies of a format by what their sender says about them."""

    def __call__(
        self,
        body: Path | bytes,
        meta: SessionMeta | None,
        limits: Limits,
        *,
        part: bool,
        told: Told = ...,
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
    # Where it depends on what senders say about a recording; `own_ranges` where ranges have names
    # that the job gives them.
    decode_told: DecodeTold | None = None
    own_ranges: bool = False
    # Each file numbers the ranks that it holds from 0, as those of one host.
    numbers_ranks: bool = False
    # Each of its recordings holds whole steps of its ranks: a step is in one of them.
    whole_steps: bool = False
    # Takes the name of a file; returns that of the file of which it is a shortened copy, if it is
    # one.
    copy_of: Callable[[str], str | None] | None = None
    # Its files are opened on the machine of who has them only, never by a server.
    local_only: bool = False

"""`paceline upload`: send a trace file to a server, and wait for its report."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from app.analysis.trace.formats.kind import COMPRESSIONS
from app.analysis.trace.formats.registry import FORMATS, WRITERS
from app.analysis.trace.metadata import load_metadata, metadata_document
from app.cli.convert import find, read_recordings, say_not_read, say_unmapped
from app.cli.files import read_metadata, reading
from app.cli.server import Body, Sent, Server, ServerError
from app.errors import ForbiddenError, InvalidMetadataError
from app.sessions.recordings.choose import META_NAME, archive_at

if TYPE_CHECKING:
    from app.analysis.trace.model import SessionMeta


CONTENT_TYPES: Final = {
    suffix: trace_format.media_types[0]
    for trace_format in FORMATS.values()
    # Several recorders write JSON: the server detects the recorder.
    if trace_format.recorder is None
    for suffix in trace_format.suffixes
}
METADATA_TYPES: Final = {".json": "application/json"}
UNREADABLE: Final = (
    "The upload was accepted. This token may not read the verdict: it lacks the scope read. Look "
    "at the address, or use a token that has it."
)
COMPRESSED_SUFFIXES: Final = tuple(compression.suffix for compression in COMPRESSIONS)

# Format in which the operations of a folder are sent: the smallest that keeps their times exactly.
SENT_AS: Final = "parquet"


@dataclass(frozen=True, slots=True)
class _Outgoing:
    """A trace to send: an unchanged file, or the archive of a folder."""

    open_trace: Callable[[], Body]
    meta: Body | None
    said: SessionMeta | None  # the metadata, read


def upload(  # noqa: PLR0913 - what the command is told
    path: Path,
    meta: Path | None,
    *,
    server: str,
    job: str | None,
    wait: bool,
    labels: Path | None = None,
) -> None:
    """Send a trace and print its address, or with `wait` its report."""
    console = Console(stderr=True)
    with Server(server) as api:
        with ExitStack() as stack:
            outgoing = _outgoing(path, meta, labels, console, stack)
            name = job or (outgoing.said and outgoing.said.trial_name)
            if not name:
                raise InvalidMetadataError(
                    "The job has no name: give --job, or metadata with a trial_name.",
                    code="metadata.missing_job",
                )
            sent = api.send(name, outgoing.open_trace, outgoing.meta, console.print)
        if not wait:
            sys.stdout.write(f"{sent.url}\n")
            return
        console.print(f"Session {sent.number} of {sent.job}: {sent.url}", soft_wrap=True)
        _wait(api, sent, console)


def _wait(api: Server, sent: Sent, console: Console) -> None:
    try:
        with console.status("Waiting for a worker") as status:
            report = api.wait_for_report(sent.session, status.update)
    except ServerError as error:
        if error.stable_code != ForbiddenError.code:
            raise
        # The trace is stored and its analysis is queued, so an interrupted wait is no failure.
        console.print(UNREADABLE, soft_wrap=True)
        sys.stdout.write(f"{sent.url}\n")
        return
    sys.stdout.write(f"{report['verdict']['sentence']}\n")


def content_type_of(path: Path) -> str:
    """Return the content type of a file name; the server detects unknown ones."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in COMPRESSED_SUFFIXES]
    return CONTENT_TYPES.get(suffixes[-1] if suffixes else "", "application/octet-stream")


def metadata_body(path: Path, text: str) -> Body:
    """Return metadata as a body in the format of their file, JSON or YAML."""
    media_type = METADATA_TYPES.get(path.suffix.lower(), "application/yaml")
    return Body(text.encode(), media_type, path.name)


def _outgoing(
    path: Path, meta: Path | None, labels: Path | None, console: Console, stack: ExitStack
) -> _Outgoing:
    """Return the trace to send for a path.

    The files of several ranks are joined and labels are applied before sending: the operations have
    a fiftieth of the files' bytes, and a fault in a file is reported before anything is sent.
    """
    with reading(path):
        several = path.is_dir() or archive_at(path) is not None or labels is not None
    if path.is_dir() and labels is None:
        recordings = find([path], None, stack)
        if len(recordings.files) == 1:
            say_not_read(recordings.not_read)
            return _as_it_is(recordings.files[0].path, meta or recordings.meta, console, stack)
    if not several:
        return _as_it_is(path, meta, console, stack)
    recorded = read_recordings([path], meta, None, labels=labels)
    say_unmapped(recorded.unmapped)
    said = recorded.trace.meta
    writer = WRITERS[SENT_AS]
    content = writer.encode(recorded.trace)
    text = yaml.safe_dump(metadata_document(said), sort_keys=False)
    name = Path(writer.file_name)
    return _Outgoing(
        lambda: Body(content, content_type_of(name), name.name),
        metadata_body(Path(META_NAME), text),
        said,
    )


def _as_it_is(path: Path, meta: Path | None, console: Console, stack: ExitStack) -> _Outgoing:
    """Return an unchanged file, with a progress bar on a terminal."""
    text = None if meta is None else read_metadata(meta)
    columns = (TextColumn("Sending"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    progress = stack.enter_context(
        Progress(*columns, console=console, disable=not console.is_terminal)
    )
    with reading(path):
        file = stack.enter_context(progress.open(path, "rb"))

    def open_trace() -> Body:
        file.seek(0)
        return Body(file, content_type_of(path), path.name)

    body = None if text is None or meta is None else metadata_body(meta, text)
    return _Outgoing(open_trace, body, None if text is None else load_metadata(text))

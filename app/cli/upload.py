"""Send a trace file to a server, and wait for what comes out."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from app.analysis.trace.formats.head import COMPRESSIONS
from app.analysis.trace.formats.registry import FORMATS
from app.analysis.trace.metadata import load_metadata
from app.cli.convert import META_NAME, files_in
from app.cli.files import FileError, read_metadata
from app.cli.server import Body, Sent, Server, ServerError
from app.errors import ForbiddenError, InvalidMetadataError

if TYPE_CHECKING:
    from pathlib import Path

    from app.analysis.trace.model import SessionMeta

CONTENT_TYPES: Final = {
    suffix: known.media_types[0]
    for known in FORMATS.values()
    # Several recorders write JSON: the server looks which it is.
    if known.recorder is None
    for suffix in known.suffixes
}
METADATA_TYPES: Final = {".json": "application/json"}
UNREADABLE: Final = (
    "The upload was accepted. This token may not read the verdict: it lacks the scope read. Look "
    "at the address, or use a token that has it."
)
COMPRESSED_SUFFIXES: Final = tuple(known.suffix for known in COMPRESSIONS)


def upload(path: Path, meta: Path | None, *, server: str, job: str | None, wait: bool) -> None:
    """Send a trace and print where it is, or with `wait` what the report says."""
    if path.is_dir():
        path, meta = _of_folder(path, meta)
    text = None if meta is None else read_metadata(meta)
    name = job or _trial_name(None if text is None else load_metadata(text))
    console = Console(stderr=True)
    with Server(server) as api:
        meta_body = None if text is None or meta is None else metadata_body(meta, text)
        sent = _send(api, name, path, meta_body, console)
        if not wait:
            sys.stdout.write(f"{sent.url}\n")
            return
        console.print(f"Session {sent.number} of {name}: {sent.url}", soft_wrap=True)
        try:
            with console.status("Waiting for a worker") as status:
                report = api.wait_for_report(sent.session, status.update)
        except ServerError as error:
            if error.stable_code != ForbiddenError.code:
                raise
            # What was asked for is done: the trace is stored, and its analysis will be.
            console.print(UNREADABLE, soft_wrap=True)
            sys.stdout.write(f"{sent.url}\n")
            return
        sys.stdout.write(f"{report['verdict']['sentence']}\n")


def content_type_of(path: Path) -> str:
    """Return the content type that a file's name says; the server looks where it says nothing."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in COMPRESSED_SUFFIXES]
    return CONTENT_TYPES.get(suffixes[-1] if suffixes else "", "application/octet-stream")


def metadata_body(path: Path, text: str) -> Body:
    """Return metadata as the file is that they were read from: JSON or YAML, under its name."""
    media_type = METADATA_TYPES.get(path.suffix.lower(), "application/yaml")
    return Body(text.encode(), media_type, path.name)


def _of_folder(folder: Path, meta: Path | None) -> tuple[Path, Path | None]:
    """Return the trace of a folder and its metadata."""
    files = files_in([folder])
    if len(files) > 1:
        message = f"{folder} holds {len(files)} traces: make one of them with paceline convert"
        raise FileError(message, code="file.several_traces")
    adjacent = folder / META_NAME
    return files[0], adjacent if meta is None and adjacent.is_file() else meta


def _send(server: Server, job: str, path: Path, meta: Body | None, console: Console) -> Sent:
    columns = (TextColumn("Sending"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with (
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
        progress.open(path, "rb") as file,
    ):

        def open_trace() -> Body:
            file.seek(0)
            return Body(file, content_type_of(path), path.name)

        return server.send(job, open_trace, meta, console.print)


def _trial_name(meta: SessionMeta | None) -> str:
    if meta is None or not meta.trial_name:
        raise InvalidMetadataError(
            "The job has no name: give --job, or metadata with a trial_name.",
            code="metadata.missing_job",
        )
    return meta.trial_name

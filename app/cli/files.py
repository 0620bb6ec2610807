"""Files that commands read and write; failures are errors of one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.analysis.documents import UnreadableDocumentError, document_text
from app.analysis.trace.metadata import unreadable_metadata
from app.errors import PacelineError


class FileError(PacelineError):
    """A file cannot be read or written."""

    code = "file.unusable"


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of reading into `FileError`."""
    try:
        yield
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror or error}"
        raise FileError(message, code="file.not_readable") from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of writing into `FileError`."""
    try:
        yield
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror or error}"
        raise FileError(message, code="file.not_writable") from error


def read_document(path: Path) -> str:
    """Return the text of a YAML or JSON file; read no more than the size limit."""
    with reading(path):
        return document_text(path)


def read_metadata(path: Path) -> str:
    """Return the text of a metadata file."""
    try:
        return read_document(path)
    except UnreadableDocumentError as error:
        raise unreadable_metadata(error, str(path)) from error

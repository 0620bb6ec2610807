"""Files that commands read and write: one that cannot be is said in a line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.errors import Fault, InvalidMetadataError, PacelineError


class FileError(PacelineError):
    """A file cannot be read or written."""

    code = "file.unusable"


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Refuse what the operating system does not let read.

    Raises
    ------
    FileError
    """
    try:
        yield
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror or error}"
        raise FileError(message, code="file.not_readable") from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Refuse what the operating system does not let write.

    Raises
    ------
    FileError
    """
    try:
        yield
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror or error}"
        raise FileError(message, code="file.not_writable") from error


def read_metadata_text(path: Path) -> str:
    """Return the text of a metadata file.

    Raises
    ------
    FileError
        It cannot be read.
    InvalidMetadataError
        It is not UTF-8; with the line.
    """
    with reading(path):
        content = path.read_bytes()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"{path} is no text in UTF-8"
        fault = Fault("malformed", f"not UTF-8: {error.reason}", line=line)
        raise InvalidMetadataError(message, code="metadata.malformed", faults=(fault,)) from error

"""Archives, including malicious ones."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import zstandard

Entry = tuple[str, bytes]


def tar(entries: Iterable[Entry | tarfile.TarInfo]) -> bytes:
    """Return a tar archive of files, and of entries without bytes."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                archive.addfile(entry)
                continue
            name, content = entry
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return body.getvalue()


def zipped(entries: Iterable[Entry | tuple[zipfile.ZipInfo, bytes]]) -> bytes:
    """Return a zip of files."""
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return body.getvalue()


def forms(entries: Iterable[Entry]) -> dict[str, bytes]:
    """Return the same files in every supported kind of archive, by the archive's name."""
    files = list(entries)
    plain = tar(files)
    return {
        "traces.tar": plain,
        "traces.tar.gz": gzip.compress(plain),
        "traces.tar.zst": zstandard.compress(plain),
        "traces.zip": zipped(files),
    }


def member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    """Return an entry of a tar archive that is no file."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def written(folder: Path, name: str, content: bytes) -> Path:
    """Write a file and return its path."""
    path = folder / name
    path.write_bytes(content)
    return path

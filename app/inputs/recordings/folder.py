"""The files of a folder with its subfolders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from app.errors import InvalidFolderError
from app.inputs.recordings.choose import NamedFile, NotRead

# Above it a folder is taken for a wrong one, such as that of all runs.
MAX_FILES: Final = 20_000


def files_of(folder: Path) -> tuple[list[NamedFile], list[NotRead]]:
    """Return the files of a folder in the order of their names, and what is not followed.

    Raises
    ------
    InvalidFolderError
        ``folder.too_many_files``.
    OSError
        The folder cannot be read.
    """
    found: list[NamedFile] = []
    links: list[NotRead] = []
    for at, folders, names in os.walk(folder, onerror=_raise):
        here = Path(at)
        folders[:] = [name for name in folders if not name.startswith(".")]
        links += [
            NotRead(_name(here / name, folder), "it is a link to a folder")
            for name in folders
            if (here / name).is_symlink()
        ]
        for name in names:
            path = here / name
            if path.is_file():
                found.append(NamedFile(_name(path, folder), path))
        if len(found) > MAX_FILES:
            message = f"{folder} has over {MAX_FILES} files: name the folder of one recording"
            raise InvalidFolderError(message, code="folder.too_many_files")
    return sorted(found, key=lambda one: one.name), links


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _raise(error: OSError) -> None:
    raise error

"""Whether a data directory holds a database, and how to make it empty."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from app.db.embedded.locks import LOCKS, take_instance_lock, wait_for_server
from app.errors import StartupError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path


def has_cluster(data_dir: Path) -> bool:
    """Return whether an embedded database is, or was being made, in a data directory."""
    return (data_dir / "postgresql").exists()


def empty_instance(data_dir: Path, *, keep: Collection[str], first: Callable[[], None]) -> None:
    """Delete everything in a data directory but the files of these names.

    Parameters
    ----------
    first : callable
        Called before anything is deleted, once no process serves it.

    Raises
    ------
    InstanceRunningError
        A process serves it.
    StartupError
        A database server still runs on it, or it cannot be emptied.
    """
    lock = take_instance_lock(data_dir)
    try:
        wait_for_server(data_dir)
        first()
        for path in data_dir.iterdir():
            if path.name in LOCKS or path.name in keep:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    except OSError as error:
        raise StartupError(f"Cannot empty {data_dir}: {error}") from error
    finally:
        os.close(lock)

"""Progress of a command, on standard error if that is a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from app.sessions.recordings.choose import NamedFile


def shown(files: Sequence[NamedFile]) -> Iterator[NamedFile]:
    """Yield files, and show the current file and the number of finished files."""
    columns = (
        TextColumn("Reading"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[name]}", markup=False),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(files), name="")
        for file in files:
            progress.update(task, name=file.name)
            yield file
            progress.advance(task)

"""`paceline blobs`: move blobs between database and object store, and look whether any are lost."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import Progress, TextColumn

from app.cli.retention.installation import opened_also_embedded
from app.services.retention.moving import Moved, move_to_database, move_to_store
from app.services.retention.objects import references
from app.settings import Settings


def move(*, to_store: bool) -> None:
    """Move all blobs that belong there."""
    shown_on = Console(stderr=True)
    with (
        opened_also_embedded(Settings(), "blobs") as container,
        Progress(TextColumn("{task.description}"), console=shown_on, transient=True) as progress,
    ):
        shown = progress.add_task("nothing moved yet")

        def tell(moved: Moved) -> None:
            progress.update(shown, description=f"{moved.blobs} blobs, {moved.bytes:,} bytes")

        moved = (move_to_store if to_store else move_to_database)(container, tell)
    sys.stderr.write(f"{moved.blobs} blobs moved, {moved.bytes:,} bytes\n")


def check() -> bool:
    """Print what the object store has of this installation; return whether it is all there."""
    with opened_also_embedded(Settings(), "blobs") as container:
        found = references(container)
    sys.stdout.write(f"{found.blobs} blobs, {found.bytes:,} bytes in the object store\n")
    if found.lost is None and found.blobs:
        sys.stdout.write("not looked for: set PACELINE_BLOB_URL\n")
        return False
    if found.lost:
        sys.stdout.write(f"{found.lost} of them are not there, or not whole\n")
    return not found.lost

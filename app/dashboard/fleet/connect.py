"""What the page of an empty fleet shows: how to connect a first job."""

from __future__ import annotations

from dataclasses import dataclass

from app.connecting.launchers import LAUNCHERS
from app.connecting.ways import WAYS, Target


@dataclass(frozen=True, slots=True)
class Tab:
    """A tab of blocks of text; `prose` may be empty."""

    name: str
    title: str
    blocks: tuple[str, ...]
    prose: str


def way_tabs(server: str) -> tuple[Tab, ...]:
    """Return a tab for each way to connect a job to the server at this address."""
    target = Target(server)
    return tuple(Tab(way.name, way.title, way.blocks(target), way.prose) for way in WAYS.values())


def launcher_tabs() -> tuple[Tab, ...]:
    """Return a tab for each launcher."""
    return tuple(
        Tab(launcher.name, launcher.title, (launcher.block,), "") for launcher in LAUNCHERS.values()
    )

"""A note: what a channel is told that is no incident, like the summary of a week."""

from __future__ import annotations

import html
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True)
class Section:
    """Lines under a heading."""

    heading: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """A note to one channel."""

    id: UUID
    """The same on every try."""
    at: datetime
    """When it was made."""
    title: str
    sections: tuple[Section, ...]
    link: str
    """Where the dashboard shows it."""
    receiver: str
    """Name of the channel."""
    link_text: str = "Open the report"


NOTE: Final = TypeAdapter(Note)


def note_text(note: Note) -> str:
    """Return a note as plain text."""
    parts = [note.title, ""]
    for section in note.sections:
        parts += [section.heading, *(f"  {line}" for line in section.lines), ""]
    return "\n".join([*parts, f"Open: {note.link}"]) + "\n"


def note_html(note: Note) -> str:
    """Return a note as a page of its own, for mail."""
    parts = [f"<h2>{html.escape(note.title)}</h2>"]
    for section in note.sections:
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in section.lines)
        parts.append(f"<h3>{html.escape(section.heading)}</h3>\n<ul>{lines}</ul>")
    parts.append(f'<p><a href="{html.escape(note.link)}">{html.escape(note.link_text)}</a></p>')
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><body>\n{body}\n</body></html>\n'

"""What a page weighs: bytes, elements, statements and times, and their table."""

from __future__ import annotations

import time
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
from sqlalchemy import event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Engine

# What asks whether a connection is alive is no statement of a page.
PING: Final = ";"
_NS: Final = 1e9


@dataclass(frozen=True, slots=True)
class Weighed:
    """A page as it was answered.

    Parameters
    ----------
    size, page : str
        Of what installation, and which.
    compressed_bytes, plain_bytes : int
    elements, statements : int
        0 where what was asked for is no page.
    time_s, processor_s : float
        Medians, by the clock, and of server, client and database together.
    """

    size: str
    page: str
    compressed_bytes: int
    plain_bytes: int
    elements: int
    statements: int
    time_s: float
    processor_s: float


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        del tag, attrs
        self.count += 1


@dataclass
class Statements:
    """Counts what a database is asked, also past SQLAlchemy."""

    count: int = 0

    def watch(self, engine: Engine) -> None:
        """Count what goes over connections that are made from now on."""
        seen = self

        class Watched(psycopg.Cursor[Any]):
            def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as psycopg
                seen.count += str(query) != PING
                return super().execute(query, *args, **kwargs)

        def connected(connection: psycopg.Connection[Any], _record: object) -> None:
            connection.cursor_factory = Watched

        event.listen(engine, "connect", connected)


class Processors:
    """What this process and the processes of a database have used.

    A busy machine adds to times by the clock, hardly to these. Without Linux's ``/proc`` the
    database counts nothing.

    Parameters
    ----------
    postmaster : int
        The first process of the database; those that serve connections are its children.
    """

    def __init__(self, postmaster: int) -> None:
        self._children = Path(f"/proc/{postmaster}/task/{postmaster}/children")

    def used_s(self) -> float:
        """Return the processor time so far, seconds."""
        return time.process_time() + sum(self._of_database())

    def _of_database(self) -> list[float]:
        try:
            children = self._children.read_text(encoding="ascii").split()
        except OSError:
            return []
        return [_process_s(int(child)) for child in children]


def _process_s(process: int) -> float:
    try:
        # Nanoseconds on a processor, nanoseconds waiting for one, turns.
        words = Path(f"/proc/{process}/schedstat").read_text(encoding="ascii").split()
    except OSError:
        return 0.0  # it has ended
    return int(words[0]) / _NS


def elements(html: str) -> int:
    """Return how many elements a page has before any script."""
    parser = _Elements()
    parser.feed(html)
    return parser.count


def table(weighed: Sequence[Weighed]) -> str:
    """Return the figures for a person."""
    head = ("size", "page", "compressed", "plain", "elements", "statements", "time", "processor")
    rows = [
        (
            page.size,
            page.page,
            f"{page.compressed_bytes / 1000:.1f} kB",
            f"{page.plain_bytes / 1000:.0f} kB",
            f"{page.elements:,}",
            str(page.statements),
            f"{1000 * page.time_s:.0f} ms",
            f"{1000 * page.processor_s:.0f} ms",
        )
        for page in weighed
    ]
    return in_columns(head, rows, texts=2)


def in_columns(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> str:
    """Return lines whose first columns are texts, and whose others are numbers."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < texts else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (head, *rows)
    )

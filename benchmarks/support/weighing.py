"""Size of a page: bytes, elements, statements and times, and a table of pages."""

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

# Statement that tests whether a connection is open, which is not counted.
PING: Final = ";"
_NS: Final = 1e9


@dataclass(frozen=True, slots=True)
class Weighed:
    """Measurements of a page.

    Parameters
    ----------
    size, page : str
        Name of the installation's size, and of the page.
    compressed_bytes, plain_bytes : int
    elements, statements : int
        0 if the address is not that of a page.
    time_s, processor_s : float
        Medians: elapsed time, and processor time of server, client and database together.
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
    """Counts the statements that a database receives, also those that bypass SQLAlchemy."""

    count: int = 0

    def watch(self, engine: Engine) -> None:
        """Count the statements of connections that are opened from now on."""
        seen = self

        class Watched(psycopg.Cursor[Any]):
            def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as psycopg
                seen.count += str(query) != PING
                return super().execute(query, *args, **kwargs)

        def connected(connection: psycopg.Connection[Any], _record: object) -> None:
            connection.cursor_factory = Watched

        event.listen(engine, "connect", connected)


class Processors:
    """Processor times of this process and the processes of a database.

    Other load of the machine hardly affects them, unlike elapsed times. Without Linux's ``/proc``
    the database's times are 0.

    Parameters
    ----------
    postmaster : int
        Process id of the database's first process, whose children serve connections.
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
        # Fields of the file: nanoseconds on a processor, nanoseconds of waiting for one, time
        # slices.
        words = Path(f"/proc/{process}/schedstat").read_text(encoding="ascii").split()
    except OSError:
        return 0.0  # it has ended
    return int(words[0]) / _NS


def elements(html: str) -> int:
    """Return the number of elements of a page before any script."""
    parser = _Elements()
    parser.feed(html)
    return parser.count


def table(weighed: Sequence[Weighed]) -> str:
    """Return the measurements as a table of text."""
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
    """Return aligned lines whose first columns are texts, and whose others are numbers."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < texts else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (head, *rows)
    )

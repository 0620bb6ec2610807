"""Tables as CSV: cells are text or numbers, never formulas; one module writes all of them."""

from __future__ import annotations

import csv
import io
import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import app
from app.web.pages import TEMPLATES_DIR
from app.web.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx"])
def test_a_cell_is_no_formula(cell: str) -> None:
    [_, [written]] = csv.reader(io.StringIO(Table(("what",), [(cell,)]).text(), newline=""))
    assert written == f"'{cell}".replace("\r", "\n")


def test_numbers_and_nothing_stay_as_they_are() -> None:
    assert Table(("a", "b", "c"), [(-0.5, None, "x=1")]).text() == "a,b,c\n-0.5,,x=1\n"


def test_no_page_writes_csv_by_itself() -> None:
    package = Path(app.__file__).parent
    found = {path.name for path in package.rglob("*.py") if "csv.writer" in path.read_text()}
    # triage.py writes numbers only, and lies below the pages.
    assert found == {"tables.py", "triage.py"}


class Kind(StrEnum):
    ONE = "one"


@dataclass(frozen=True)
class Row:
    id: uuid.UUID
    kind: Kind
    at: datetime
    behind: timedelta
    is_slow: bool
    names: tuple[str, ...]
    labels: dict[str, str]
    rights: frozenset[Kind]


def test_every_field_is_a_column_of_text_and_numbers() -> None:
    row = Row(
        id=uuid.UUID(int=7),
        kind=Kind.ONE,
        at=datetime(2026, 11, 22, tzinfo=UTC),
        behind=timedelta(minutes=1),
        is_slow=True,
        names=("a", "=b"),
        labels={"team": "vision"},
        rights=frozenset({Kind.ONE}),
    )
    [written] = csv.DictReader(io.StringIO(Table.of(Row, [row]).text()))
    assert written == {
        "id": "00000000-0000-0000-0000-000000000007",
        "kind": "one",
        "at": "2026-11-22T00:00:00+00:00",
        "behind": "60.0",
        "is_slow": "true",
        "names": "a =b",
        "labels": "team=vision",
        "rights": "one",
    }
    assert Table.of(Row, [row], "kind").text() == "kind\none\n"


@pytest.mark.slow
def test_a_long_table_is_made_while_it_is_sent() -> None:
    made = 0

    def rows() -> Iterator[tuple[int]]:
        nonlocal made
        for number in range(100_000):
            made += 1
            yield (number,)

    pieces = Table(("number",), rows()).pieces()
    first = next(pieces)
    assert made < 10_000
    assert first + "".join(pieces) == Table(("number",), ((n,) for n in range(100_000))).text()


# Tables without a CSV file.
WITHOUT_FILE = {
    # The answer to a question, which "Copy" copies completely.
    "sessions/what_if.html",
    # Definitions, and numbers of the report.
    "sessions/exact.html",
    # Input fields: the devices of a new specification.
    "plans/list.html",
}


def test_every_table_of_every_page_names_its_file() -> None:
    found = {
        str(path.relative_to(TEMPLATES_DIR))
        for path in TEMPLATES_DIR.rglob("*.html")
        for tag in re.findall(r"<table[^>]*>", path.read_text(encoding="utf-8"))
        if "data-csv=" not in tag
    }
    assert found == WITHOUT_FILE

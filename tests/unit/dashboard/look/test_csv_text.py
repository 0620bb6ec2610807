"""Tables as CSV: cells are text or numbers, never formulas; one module writes them all."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

import app
from app.dashboard.look.csv_text import csv_text


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx"])
def test_a_cell_is_no_formula(cell: str) -> None:
    [_, [written]] = csv.reader(io.StringIO(csv_text(("what",), [(cell,)]), newline=""))
    assert written == f"'{cell}".replace("\r", "\n")


def test_numbers_and_nothing_stay_as_they_are() -> None:
    assert csv_text(("a", "b", "c"), [(-0.5, None, "x=1")]) == "a,b,c\n-0.5,,x=1\n"


def test_no_page_writes_csv_by_itself() -> None:
    package = Path(app.__file__).parent
    found = {path.name for path in package.rglob("*.py") if "csv.writer" in path.read_text()}
    # Of numbers alone, below the pages.
    assert found == {"csv_text.py", "evidence.py"}

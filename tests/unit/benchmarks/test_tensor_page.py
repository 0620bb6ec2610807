"""The page that `make bench-tp` writes: it has all measurements, and plans within two steps."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "tensor-measured.md").read_text(encoding="utf-8")
CASES = ("χ = 2", "χ = 4", "χ = 8", "χ = 8 and 3")
# Maximum number of steps between a straggler and its plan, and between its end and the plan's.
WITHIN = 2


def section(name: str) -> str:
    return PAGE.partition(f"<!-- {name} -->")[2].partition(f"<!-- end of {name} -->")[0]


def table(text: str, first: str) -> list[list[str]]:
    """Return the rows of the table whose first column has this name."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    begin = next(n for n, row in enumerate(rows) if row[0] == first)
    found = []
    for row in rows[begin + 2 :]:
        if len(row) == 1:
            break
        found.append(row)
    return found


@pytest.mark.parametrize("case", CASES)
def test_every_method_is_measured_and_predicted(case: str) -> None:
    rows = [row for row in table(section("speed"), "straggler") if row[0] == case]
    found = {row[1] for row in rows}
    for method in ("ZERO (T_min, within the budget)", "ZERO (T_min)", "ZERO (T_avg)", "MIG",
                   "SEMI", "water-filled"):  # fmt: skip
        assert {method, f"{method}, hidden units"} <= found
    assert {"no action", "sticky"} <= found
    for _, _, gamma, _, predicted, measured, _, _ in rows:
        assert float(predicted) > 0
        assert float(measured) > 0
        share, _, marked = gamma.partition(" ")
        assert (float(share) > 0.25) == (marked == "(beyond the budget)")


def test_targets_at_eight_times_are_met() -> None:
    for name, _, target, measured in table(section("speed"), "at χ = 8"):
        assert float(measured.removesuffix(" ×")) >= float(target.removesuffix(" ×")), name


def test_accuracy_says_of_every_way_and_share_whether_it_is_noise() -> None:
    rows = table(section("accuracy"), "selection")
    assert [row[0] for row in rows] == ["Rd", "Pri", "PriDiff", "hidden units, Pri"]
    assert all("±" in cell for row in rows for cell in row[1:])
    assert "5 seeds" in section("accuracy")


def test_a_plan_is_there_within_two_steps_and_gone_within_two() -> None:
    with (DOCS / "tensor-following.csv").open(encoding="utf-8", newline="") as file:
        steps = list(csv.DictReader(file))
    slow = [int(step["step"]) for step in steps if step["slow"] == "1"]
    planned = [int(step["step"]) for step in steps if step["plan"] != "0"]
    assert 0 < planned[0] - slow[0] <= WITHIN
    assert 0 < planned[-1] - slow[-1] <= WITHIN
    assert planned == list(range(planned[0], planned[-1] + 1))
    for name, here in (
        ("slow steps before the plan was in force", planned[0] - slow[0]),
        ("steps after the recovery before it was withdrawn", planned[-1] - slow[-1]),
    ):
        assert f"| {name} | {here} |" in section("following")

"""The verdicts that depend on each threshold."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from app.analysis.diagnosis import late_launches
from app.analysis.diagnosis.causes import network_congestion
from benchmarks.sensitivity import (
    BEGIN,
    END,
    FACTORS,
    SYNTHETIC,
    Threshold,
    changes_of,
    moved,
    table,
    thresholds,
)

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = ROOT / "docs/diagnosis.md"


@pytest.mark.parametrize(
    ("value", "factor", "to"), [(0.5, 0.8, 0.4), (1.5, 1.2, 1.8), (2, 0.8, 1), (20, 1.2, 24)]
)
def test_counts_move_by_one_at_least(value: float, factor: float, to: float) -> None:
    assert moved(value, factor) == pytest.approx(to)
    assert type(moved(value, factor)) is type(value)


def test_thresholds_of_all_that_judges_are_moved() -> None:
    found = thresholds()
    written = [
        path
        for package in ("diagnosis", "budget", "arrivals")
        for path in (ROOT / "app/analysis" / package).rglob("*.py")
        if "class Thresholds" in path.read_text()
    ]

    assert len(found) == len(written)
    for module in found.values():
        assert is_dataclass(module.THRESHOLDS)
        assert fields(module.THRESHOLDS)


def test_a_verdict_changes_with_its_threshold_and_thresholds_stay_as_they_were() -> None:
    before = network_congestion.THRESHOLDS, late_launches.THRESHOLDS
    changes = changes_of("congestion", [])

    assert Threshold(network_congestion.__name__, "quiet") in [one.threshold for one in changes]
    assert before == (network_congestion.THRESHOLDS, late_launches.THRESHOLDS)
    assert "| `causes.network_congestion.quiet` | 1: congestion | 0 |" in table(changes, 0)


class Row(NamedTuple):
    """A row of the page's table: a threshold, and the changed jobs for each factor."""

    name: str
    jobs: dict[float, tuple[str, ...]]


def page() -> tuple[list[int], list[Row]]:
    """Return the numbers above the page's table, and its rows."""
    text = PAGE.read_text()
    section = text[text.index(BEGIN) : text.index(END)]
    numbers = [int(found) for found in re.findall(r"\d+", section.split("\n")[1])]
    rows = []
    for line in section.splitlines():
        if line.startswith("| `"):
            name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            jobs = (tuple(cell.partition(": ")[2].split(", ")) for cell in cells)
            of = {
                factor: () if of == ("",) else of for factor, of in zip(FACTORS, jobs, strict=True)
            }
            rows.append(Row(name.strip("`"), of))
    return numbers, rows


def named(threshold: Threshold) -> str:
    module = threshold.module.removeprefix("app.analysis.").removeprefix("diagnosis.")
    return f"{module}.{threshold.name}"


def test_the_page_counts_and_names_the_thresholds_that_there_are() -> None:
    (recorded, synthetic, unmoved, every, *_), rows = page()
    there = {
        named(Threshold(module, field.name))
        for module, values in thresholds().items()
        for field in fields(values.THRESHOLDS)
    }

    assert recorded > 0
    assert synthetic == len(SYNTHETIC)
    assert every == len(there)
    assert unmoved == every - len(rows)
    assert {row.name for row in rows} <= there


def test_a_threshold_on_which_a_recorded_job_hangs_says_so() -> None:
    modules = {named(Threshold(name, "")): module for name, module in thresholds().items()}
    for row in page()[1]:
        if {job for jobs in row.jobs.values() for job in jobs} <= set(SYNTHETIC):
            continue
        module, _, field = row.name.rpartition(".")
        before, found, _ = inspect.getsource(modules[f"{module}."]).partition(f"    {field}: ")
        assert found
        comment = before.rpartition(" = ")[2]
        assert "recorded job" in " ".join(comment.split()).replace("# ", "")


@pytest.mark.parametrize(
    "job",
    [
        "congestion",
        *(
            pytest.param(job, marks=pytest.mark.slow)
            for job in ("experts", "network 11", "stage_imbalance 11", "rotating")
        ),
    ],
)
def test_the_page_has_the_changes_of_a_job(job: str) -> None:
    written = {
        (row.name, factor) for row in page()[1] for factor in FACTORS if job in row.jobs[factor]
    }
    assert {(named(change.threshold), change.factor) for change in changes_of(job, [])} == written

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np
import pytest

from app.dashboard.session.exports import EXPORTS, workers_csv


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_every_worker_is_a_line_with_exact_numbers(slow_worker: dict[str, Any]) -> None:
    found = {(int(row["dp"]), int(row["pp"])): row for row in rows(workers_csv(slow_worker))}
    assert len(found) == 12
    assert float(found[1, 2]["slowdown"]) == slow_worker["by_worker"]["exact"][1][2]
    rank = slow_worker["workers"]["rank"][1][2]
    assert found[1, 2]["host"] == slow_worker["hosts"][str(rank)]


def test_a_step_takes_the_place_of_the_mean_and_nothing_known_stays_empty(
    slow_worker: dict[str, Any],
) -> None:
    step_map = np.full((3, 4), 1.25, dtype=np.float32)
    step_map[0, 0] = np.nan
    found = rows(workers_csv(slow_worker, step_map))
    assert found[0]["slowdown"] == ""
    assert float(found[1]["slowdown"]) == 1.25


def test_steps_have_their_times_in_seconds(slow_worker: dict[str, Any]) -> None:
    found = rows(EXPORTS["steps"](slow_worker))
    assert [int(row["step"]) for row in found] == slow_worker["steps"]["analyzed"]
    assert float(found[0]["recorded_s"]) == slow_worker["step_times"]["recorded"][0]


@pytest.mark.parametrize("name", EXPORTS)
def test_every_export_has_a_header_and_data(slow_worker: dict[str, Any], name: str) -> None:
    found = rows(EXPORTS[name](slow_worker))
    assert found
    assert all(None not in row.values() for row in found)


def test_a_host_with_a_comma_is_one_cell(slow_worker: dict[str, Any]) -> None:
    slow_worker["hosts"] = dict.fromkeys(slow_worker["hosts"], 'a "b", c')
    assert rows(workers_csv(slow_worker))[0]["host"] == 'a "b", c'

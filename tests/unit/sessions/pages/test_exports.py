from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from app.analysis.report.document import Report
from app.sessions.pages.exports import EXPORTS, workers_csv
from app.web.tables import Table
from tests.support.reports import changed


def rows(table: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table.text())))


def test_every_worker_is_a_line_with_exact_numbers(slow_worker: Report) -> None:
    found = {(int(row["dp"]), int(row["pp"])): row for row in rows(workers_csv(slow_worker))}
    assert len(found) == 12
    assert float(found[1, 2]["slowdown"]) == slow_worker.by_worker.exact[1][2]
    rank = slow_worker.workers.rank[1][2]
    assert found[1, 2]["host"] == slow_worker.hosts[rank]


def test_a_step_takes_the_place_of_the_mean(slow_worker: Report) -> None:
    found = rows(workers_csv(slow_worker, np.full((3, 4), 1.25, dtype=np.float32)))
    assert {row["slowdown"] for row in found} == {"1.25"}


def test_steps_have_their_times_in_seconds(slow_worker: Report) -> None:
    found = rows(EXPORTS["steps"](slow_worker))
    assert [int(row["step"]) for row in found] == list(slow_worker.steps.analyzed)
    assert float(found[0]["recorded_s"]) == slow_worker.step_times.recorded[0]


# Files that a recording of a slow worker does not have, and that other tests cover.
NOT_HERE = {"template", "tensor-ranks", "tensor-methods", "unsaid"}


@pytest.mark.parametrize("name", EXPORTS)
def test_every_export_has_a_header_and_data(slow_worker: Report, name: str) -> None:
    found = rows(EXPORTS[name](slow_worker))
    assert bool(found) == (name not in NOT_HERE)
    assert all(None not in row.values() for row in found)


def test_a_host_with_a_comma_is_one_cell(slow_worker: Report) -> None:
    slow_worker = changed(slow_worker, hosts=dict.fromkeys(slow_worker.hosts, 'a "b", c'))
    assert rows(workers_csv(slow_worker))[0]["host"] == 'a "b", c'

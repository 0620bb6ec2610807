"""Events that are read in batches give the same result as events that are read singly."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from app.analysis.trace.limits import Limits
from app.analysis.trace.recordings import kineto
from app.analysis.trace.recordings import kineto_columns as kineto_batches
from app.analysis.trace.recordings.kineto import scan_kineto
from app.errors import InvalidTraceError
from tests.support.trainings.files import recorded as recorded_file
from tests.support.trainings.job import Kind, Style, Training

if TYPE_CHECKING:
    from app.analysis.trace.recordings.profiler.scan import PackedTable, Scan

JOB = Training(Kind.FSDP2, ranks=2, steps=8, layers=8, kernels=6)


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    file = recorded_file(JOB, Style(), 0)
    # One batch, which an event of a process without a number would end.
    file["traceEvents"] = [one for one in file["traceEvents"] if one["pid"] != "Spans"]
    return file


def rows(table: PackedTable, columns: int) -> list[list[int]]:
    parts = [np.stack(part, axis=1) for part in table.read(*range(columns))]
    return sorted(np.concatenate(parts).tolist()) if parts else []


def kept(scan: Scan) -> tuple[object, ...]:
    """Return the result of a scan, with threads by their names in the file."""
    named = {number: name for name, number in scan.threads.items()}
    tables = (
        (scan.launches.table, 3, 2),
        (scan.operators.table, 3, 2),
        (scan.gradients.table, 3, 2),
        (scan.outer.table, 3, 2),
        (scan.kernels.table, 7, 5),
    )
    numbers = [
        sorted([*row[:at], str(named[row[at]]), *row[at + 1 :]] for row in rows(table, width))
        for table, width, at in tables
    ]
    issues = [(one.name, one.span, named[one.thread], one.external) for one in scan.issues]
    marks = [(one.name, one.span, named[one.thread]) for one in scan.marks]
    return numbers, scan.works, issues, marks, scan.steps, scan.between, scan.optimizers


def one_by_one(body: bytes, monkeypatch: pytest.MonkeyPatch) -> Scan:
    with monkeypatch.context() as patch:
        patch.setattr(kineto_batches, "events_of", lambda _lines, _count: None)
        return scan_kineto(body, Limits())


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("separators", [None, (",", ":")])
def test_columns_keep_what_single_events_do(
    recorded: dict[str, Any],
    indent: int | None,
    separators: tuple[str, str] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = json.dumps(recorded, indent=indent, separators=separators).encode()

    assert kept(scan_kineto(body, Limits())) == kept(one_by_one(body, monkeypatch))


def test_almost_all_events_are_taken_at_once(
    recorded: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = 0
    take = kineto._take

    def counted(*given: Any) -> None:  # noqa: ANN401 - whatever it takes
        nonlocal alone
        alone += 1
        take(*given)

    monkeypatch.setattr(kineto, "_take", counted)
    scan_kineto(json.dumps(recorded).encode(), Limits())

    assert alone < 0.25 * len(recorded["traceEvents"])


@pytest.mark.parametrize(
    "odd",
    [
        {"ts": "4459370929637.969"},
        {"ts": 4459370929637.96912, "dur": 1e-3},
        {"args": {"External id": "77"}},
        {"args": {"External id": 1 << 62, "nested": [{"ph": "X"}, {"ph": "X"}]}},
        {"tid": "thread 7 (python)"},
        {"pid": -1},
        {"dur": 1e30},
        {"name": "aten::mm },{ not an end"},
        {"ph": "i"},
        {"cat": None},
        {"dur": None},
    ],
    ids=str,
)
def test_odd_events_among_others_are_the_same(
    recorded: dict[str, Any], odd: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    events = list(recorded["traceEvents"])
    place = next(at for at, one in enumerate(events) if one.get("name") == "aten::mm")
    events[place] = events[place] | odd
    body = json.dumps(recorded | {"traceEvents": events}, separators=(",", ":")).encode()
    try:
        wanted: object = kept(one_by_one(body, monkeypatch))
    except InvalidTraceError as error:
        wanted = (error.stable_code, error.faults)
    try:
        found: object = kept(scan_kineto(body, Limits()))
    except InvalidTraceError as error:
        found = (error.stable_code, error.faults)

    assert found == wanted

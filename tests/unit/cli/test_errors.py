from __future__ import annotations

from app.errors import Fault, InvalidTraceError, lines_of


def test_a_refusal_of_one_fault_is_printed_once_with_its_place() -> None:
    fault = Fault("wrong_type", "the ts is no time", row=7, column="ts")
    error = InvalidTraceError("the ts is no time (row 7)", code="trace.wrong_type", faults=(fault,))
    assert list(lines_of(error)) == [
        "paceline: the ts is no time (row 7, column ts) [trace.wrong_type]\n"
    ]


def test_details_of_a_refusal_are_printed_below_it() -> None:
    faults = (Fault("null", "x is null", line=3), Fault("null", "y is null", line=4, column="y"))
    error = InvalidTraceError("rank0.json: x is null", code="trace.null", faults=faults)
    assert list(lines_of(error)) == [
        "paceline: rank0.json: x is null (line 3) [trace.null]\n",
        "  y is null (line 4, column y) [null]\n",
    ]
    summary = InvalidTraceError(
        "two of four sent nothing", code="trace.rank_missing", faults=faults
    )
    assert [line[:12] for line in lines_of(summary)] == [
        "paceline: tw",
        "  x is null ",
        "  y is null ",
    ]


def test_the_code_of_a_fault_that_is_not_that_of_the_refusal_is_there() -> None:
    fault = Fault("not_finite", "a must be finite", column="a")
    error = InvalidTraceError("a must be finite", code="tensor.invalid", faults=(fault,))
    assert list(lines_of(error)) == [
        "paceline: a must be finite (column a) [not_finite] [tensor.invalid]\n"
    ]

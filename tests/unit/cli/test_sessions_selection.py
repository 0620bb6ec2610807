"""Selections and factors in command-line options."""

from __future__ import annotations

import pytest

from app.analysis.replay.what_if import Selection
from app.cli.analyze import parse_factor, parse_selection
from app.errors import InvalidQuestionError


def test_selections_of_the_command_line() -> None:
    assert parse_selection("stage=3,op=forward-compute|grads-sync") == Selection(
        stages=(3,), op_types=("forward-compute", "grads-sync")
    )
    assert parse_selection("worker=0:0|2:1") == Selection(workers=((0, 0), (2, 1)))
    assert parse_selection("op=forward-pp-comm,dp=1,step=821") == Selection(
        op_types=("forward-pp-comm",), dp_ranks=(1,), steps=(821,)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "A selection is missing, one or more of op=, step=, stage=, dp=, worker=DP:STAGE"),
        ("dp=0,", "A selection is missing, one or more of op="),
        ("stage", "'stage' is not one of op=, step=, stage=, dp=, worker=DP:STAGE"),
        ("stage=", "'stage=' is not one of op=, step=, stage=, dp=, worker=DP:STAGE"),
        ("rank=1", "'rank=1' is not one of op=, step=, stage=, dp=, worker=DP:STAGE"),
        ("stage=x", "'stage=x' does not name a stage, a whole number of 0 or more"),
        ("stage=-1", "'stage=-1' does not name a stage, a whole number of 0 or more"),
        ("dp=0,step=1|", "'step=1|' does not name a step, a whole number of 0 or more"),
        ("dp=" + "9" * 5000, "does not name a DP rank"),
        ("worker=1", "'worker=1' does not name a worker as DP:STAGE, such as worker=0:3"),
        ("worker=1:2:3", "does not name a worker as DP:STAGE"),
        ("op=no", "'op=no' does not name one of the types forward-compute,"),
        (
            "stage=1,stage=2",
            "has stage= twice; several values are separated by |",
        ),
    ],
)
def test_selections_that_cannot_be_read_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidQuestionError) as caught:
        parse_selection(text)
    assert message in caught.value.message
    (fault,) = caught.value.faults
    assert fault.column == text.rsplit(",", maxsplit=1)[-1]


def test_factors_of_the_command_line() -> None:
    assert [parse_factor(text) for text in ("0.5", ".5", "1e3", "0")] == [0.5, 0.5, 1000.0, 0.0]
    for text in ("", "fast", "-1", "nan", "inf", "1e4", "9" * 400):
        with pytest.raises(InvalidQuestionError, match="is no factor: a number from 0 to 1000"):
            parse_factor(text)

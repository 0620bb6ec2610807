"""What-if questions in the format of the API."""

from __future__ import annotations

from typing import Any

import pytest

from app.analysis.replay.adaptations.kind import Name
from app.analysis.replay.what_if import BaseDurations, Change, Question, Selection
from app.errors import InvalidQuestionError
from app.sessions.questions import MOST_CHANGES, WrittenQuestion


def test_questions_as_json() -> None:
    question = WrittenQuestion.model_validate(
        {
            "base": "ideal",
            "changes": [
                {
                    "select": {"workers": [[0, 1]], "op_types": ["optimizer"]},
                    "duration": "recorded",
                },
                {"select": {"steps": [5]}, "scale": 0.5},
            ],
        }
    )
    assert question.question() == Question(
        BaseDurations.IDEAL,
        (
            Change(Selection(workers=((0, 1),), op_types=("optimizer",)), BaseDurations.RECORDED),
            Change(Selection(steps=(5,)), BaseDurations.IDEAL, 0.5),
        ),
    )


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({}, "changes"),
        ({"base": "peers", "changes": [{"select": {"steps": [5]}}]}, "base"),
        ({"changes": []}, "changes"),
        ({"changes": [1]}, "changes[0]"),
        ({"changes": [{"select": {"stages": 1}}]}, "changes[0].select.stages"),
        ({"changes": [{"select": {"stages": [True]}}]}, "changes[0].select.stages"),
        ({"changes": [{"select": {"workers": [[1]]}}]}, "changes[0].select.workers"),
        ({"changes": [{"select": {"ranks": [1]}}]}, "changes[0].select.ranks"),
        ({"changes": [{"select": []}]}, "changes[0].select"),
        ({"changes": [{"select": {"stages": [0]}, "duration": "fast"}]}, "changes[0].duration"),
        ({"changes": [{"select": {"stages": [0]}, "scale": -1}]}, "changes[0].scale"),
        ({"changes": [{"select": {"stages": [0]}, "scale": float("nan")}]}, "changes[0].scale"),
        ({"changes": [{"select": {"stages": [0]}, "scale": 1e308}]}, "changes[0].scale"),
        ({"changes": [{"select": {"stages": [0]}, "scale": 10**400}]}, "changes[0].scale"),
        ({"changes": [{"select": {"stages": [0]}, "scale": True}]}, "changes[0].scale"),
        ({"changes": [{"select": {"stages": [0]}, "duration": {}}]}, "changes[0].duration"),
        ({"changes": [{"select": {"stages": [0]}, "speed": 2}]}, "changes[0].speed"),
        ({"changes": [{"select": {"op_types": [["gc"]]}}]}, "changes[0].select.op_types"),
        ({"changes": [{"select": {"stages": [0]}}] * (MOST_CHANGES + 1)}, "changes"),
        ({"base": "other", "changes": [{"select": {"stages": [0]}}]}, "base"),
        ({"base": ["ideal"], "changes": [{"select": {"stages": [0]}}]}, "base"),
        ({"what": 1, "changes": [{"select": {"stages": [0]}}]}, "what"),
    ],
)
def test_questions_that_cannot_be_read_name_the_place(document: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidQuestionError) as caught:
        WrittenQuestion.model_validate(document)
    assert path in [fault.column for fault in caught.value.faults]


def test_as_many_changes_as_allowed_are_read() -> None:
    question = WrittenQuestion.model_validate(
        {"changes": [{"select": {"stages": [0]}}] * MOST_CHANGES}
    )
    assert len(question.question().changes) == MOST_CHANGES


def test_adaptations_are_switched_off_by_name() -> None:
    twice = {"without": ["blocking_transfers", "blocking_transfers"]}
    question = WrittenQuestion.model_validate(twice).question()

    assert question.without == (Name.BLOCKING_TRANSFERS,)
    assert question.changes == ()
    with pytest.raises(InvalidQuestionError) as caught:
        WrittenQuestion.model_validate({"without": ["streams"]})
    assert caught.value.faults[0].column == "without[0]"
    with pytest.raises(InvalidQuestionError):
        WrittenQuestion.model_validate({"without": []})

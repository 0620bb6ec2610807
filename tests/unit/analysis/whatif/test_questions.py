from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.analysis.report import analyze
from app.analysis.synthesis.injections import SlowWorker
from app.analysis.whatif.metrics import measure
from app.analysis.whatif.questions import (
    Answer,
    Base,
    Change,
    Question,
    Selection,
    answer,
    parse_question,
    parse_selection,
)
from app.analysis.whatif.session import prepare_replay
from app.errors import InvalidQuestionError
from tests.factories import session

TRACE = session(SlowWorker((1, 0), 2.0)).trace
REPLAYED = prepare_replay(TRACE)
METRICS = measure(REPLAYED)


def ask(*changes: Change, base: Base = Base.RECORDED) -> Answer:
    return answer(REPLAYED, Question(base, changes))


def test_only_one_worker_kept_is_its_slowdown() -> None:
    found = ask(Change(Selection(workers=((1, 0),)), Base.RECORDED), base=Base.IDEAL)
    assert found.answer_s == pytest.approx(METRICS.by_worker[:, 1, 0], rel=1e-12)


def test_the_last_stage_fixed_is_what_m_s_removes() -> None:
    found = ask(Change(Selection(stages=(1,)), Base.IDEAL))
    assert found.answer_s == pytest.approx(METRICS.last_stage.removed_s, rel=1e-12)


def test_one_op_type_kept_is_its_slowdown() -> None:
    found = ask(Change(Selection(op_types=("forward-compute",)), Base.RECORDED), base=Base.IDEAL)
    assert found.answer_s == pytest.approx(METRICS.by_optype["forward-compute"], rel=1e-12)


def test_conditions_of_a_selection_have_to_hold_together() -> None:
    steps = REPLAYED.steps
    one = ask(Change(Selection(workers=((1, 0),), steps=(int(steps[2]),)), Base.IDEAL))
    changed = np.flatnonzero(~np.isclose(one.answer_s, one.simulated_s, rtol=1e-12))
    assert changed.tolist() == [2]
    nothing = ask(Change(Selection(workers=((1, 0),), stages=(1,)), Base.IDEAL))
    assert nothing.answer_s == pytest.approx(nothing.simulated_s, rel=1e-12)


def test_the_last_change_holds() -> None:
    worker = Selection(workers=((1, 0),))
    undone = ask(Change(worker, Base.IDEAL), Change(worker, Base.RECORDED))
    assert undone.answer_s == pytest.approx(undone.simulated_s, rel=1e-12)


def test_scaled_durations_take_so_many_times_as_long() -> None:
    everything = Selection(stages=(0, 1))
    doubled = ask(Change(everything, Base.RECORDED, 2.0))
    assert doubled.answer_s == pytest.approx(2 * doubled.simulated_s, rel=1e-12)
    assert doubled.as_document()["gain"] == pytest.approx(-1)


def test_the_answer_agrees_with_the_report() -> None:
    report = analyze(TRACE).document
    document = ask(Change(Selection(stages=(0, 1)), Base.IDEAL)).as_document()
    assert document["slowdown"] == pytest.approx(1)
    assert document["gain"] == pytest.approx(report["waste"])
    assert document["steps"] == report["steps"]["analyzed"]


def test_selections_of_the_command_line() -> None:
    assert parse_selection("stage=3,op=forward-compute|grads-sync") == Selection(
        stages=(3,), op_types=("forward-compute", "grads-reduce-scatter")
    )
    assert parse_selection("worker=0:0|2:1") == Selection(workers=((0, 0), (2, 1)))
    assert parse_selection("op=forward-pp-comm,dp=1,step=821") == Selection(
        op_types=("forward-send", "forward-recv"), dp_ranks=(1,), steps=(821,)
    )


@pytest.mark.parametrize(
    "text",
    ["", "stage", "stage=", "stage=x", "rank=1", "worker=1", "worker=1:2:3", "op=no", "stage=-1"],
)
def test_selections_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(InvalidQuestionError) as caught:
        parse_selection(text)
    assert caught.value.faults


def test_questions_as_json() -> None:
    question = parse_question(
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
    assert question == Question(
        Base.IDEAL,
        (
            Change(Selection(workers=((0, 1),), op_types=("optimizer",)), Base.RECORDED),
            Change(Selection(steps=(5,)), Base.IDEAL, 0.5),
        ),
    )


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({}, "changes"),
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
        ({"changes": [{"select": {"stages": [0]}, "speed": 2}]}, "changes[0].speed"),
        ({"base": "other", "changes": [{"select": {"stages": [0]}}]}, "base"),
        ({"what": 1, "changes": [{"select": {"stages": [0]}}]}, "what"),
    ],
)
def test_questions_that_cannot_be_read_name_the_place(document: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidQuestionError) as caught:
        parse_question(document)
    assert path in [fault.column for fault in caught.value.faults]


@pytest.mark.parametrize(
    ("selection", "path"),
    [
        (Selection(), "changes[0].select"),
        (Selection(steps=(1,)), "changes[0].select.steps"),
        (Selection(stages=(2,)), "changes[0].select.stages"),
        (Selection(dp_ranks=(3,)), "changes[0].select.dp_ranks"),
        (Selection(workers=((0, 2),)), "changes[0].select.workers"),
    ],
)
def test_what_the_session_does_not_have_is_refused_at_its_place(
    selection: Selection, path: str
) -> None:
    with pytest.raises(InvalidQuestionError) as caught:
        ask(Change(selection, Base.IDEAL))
    assert [fault.column for fault in caught.value.faults] == [path]

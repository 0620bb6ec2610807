from __future__ import annotations

import numpy as np
import pytest

from app.analysis.replay.metrics import measure
from app.analysis.replay.session import prepare_replay
from app.analysis.replay.what_if import (
    Against,
    BaseDurations,
    Change,
    Question,
    QuestionAnswer,
    Selection,
    answer,
)
from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from app.analysis.synthesis.injections.computations import SlowWorker
from app.errors import InvalidQuestionError
from tests.factories import select, session

TRACE = session(SlowWorker((1, 0), 2.0)).trace
REPLAYED = prepare_replay(TRACE)
METRICS = measure(REPLAYED)


def ask(*changes: Change, base: BaseDurations = BaseDurations.RECORDED) -> QuestionAnswer:
    return answer(REPLAYED, Question(base, changes))


def test_only_one_worker_kept_is_its_slowdown() -> None:
    found = ask(
        Change(Selection(workers=((1, 0),)), BaseDurations.RECORDED), base=BaseDurations.IDEAL
    )
    assert found.answer_s == pytest.approx(METRICS.by_worker[:, 1, 0], rel=1e-12)


def test_the_last_stage_fixed_is_what_m_s_removes() -> None:
    found = ask(Change(Selection(stages=(1,)), BaseDurations.IDEAL))
    assert found.answer_s == pytest.approx(METRICS.last_stage.removed_s, rel=1e-12)


def test_one_op_type_kept_is_its_slowdown() -> None:
    found = ask(
        Change(Selection(op_types=("forward-compute",)), BaseDurations.RECORDED),
        base=BaseDurations.IDEAL,
    )
    assert found.answer_s == pytest.approx(METRICS.by_optype["forward-compute"], rel=1e-12)


def test_conditions_of_a_selection_have_to_hold_together() -> None:
    steps = REPLAYED.steps
    one = ask(Change(Selection(workers=((1, 0),), steps=(int(steps[2]),)), BaseDurations.IDEAL))
    changed = np.flatnonzero(~np.isclose(one.answer_s, one.simulated_s, rtol=1e-12))
    assert changed.tolist() == [2]
    nothing = ask(Change(Selection(workers=((1, 0),), stages=(1,)), BaseDurations.IDEAL))
    assert nothing.answer_s == pytest.approx(nothing.simulated_s, rel=1e-12)


def against_headline(report: Report) -> Against:
    return Against(report.headline.kind.value, report.headline.slowdown)


def test_the_last_change_holds() -> None:
    worker = Selection(workers=((1, 0),))
    undone = ask(Change(worker, BaseDurations.IDEAL), Change(worker, BaseDurations.RECORDED))
    assert undone.answer_s == pytest.approx(undone.simulated_s, rel=1e-12)


def test_scaled_durations_take_that_multiple_of_their_time() -> None:
    everything = Selection(stages=(0, 1))
    doubled = ask(Change(everything, BaseDurations.RECORDED, 2.0))
    assert doubled.answer_s == pytest.approx(2 * doubled.simulated_s, rel=1e-12)
    assert doubled.as_document(doubled.published)["gain"] == pytest.approx(-1)


def test_the_answer_agrees_with_the_report() -> None:
    report = analyze(TRACE).report
    found = ask(Change(Selection(stages=(0, 1)), BaseDurations.IDEAL))
    document = found.as_document(found.published)
    assert document["slowdown"] == pytest.approx(1)
    assert document["gain"] == pytest.approx(report.waste)
    assert document["steps"] == list(report.steps.analyzed)
    assert document["reference"]["kind"] == "published"
    assert document["reference"]["slowdown"] == pytest.approx(1)
    assert document["reference"]["step_time_s"] == pytest.approx(document["ideal_step_time_s"])


def test_a_worker_at_the_times_of_its_peers_is_what_the_best_fix_replays() -> None:
    found = ask(Change(Selection(workers=((1, 0),)), BaseDurations.PEERS))
    report = analyze(TRACE).report
    (fix,) = (fix for fix in report.recommendations if fix.action == "replace_worker")
    document = found.as_document(against_headline(report))
    assert document["gain"] == pytest.approx(fix.predicted_gain, rel=1e-9)
    assert document["step_time_s"] == pytest.approx(fix.predicted_step_time, rel=1e-9)
    ideal = ask(Change(Selection(workers=((1, 0),)), BaseDurations.IDEAL))
    assert found.answer_s.mean() < ideal.answer_s.mean()


def test_what_restores_durations_gains_no_more_than_the_job_loses() -> None:
    restored = ask(Change(Selection(stages=(0, 1)), BaseDurations.IDEAL))
    assert restored.as_document(Against("causes", 1.01))["gain"] == pytest.approx(1 - 1 / 1.01)
    replayed_s = restored.as_document(Against("causes", 1.01))["replayed_step_time_s"]
    assert replayed_s == pytest.approx(restored.ideal_s.mean())
    halved = ask(Change(Selection(stages=(0, 1)), BaseDurations.RECORDED, 0.5))
    assert halved.as_document(Against("causes", 1.01))["gain"] == pytest.approx(0.5)


def test_workers_that_take_the_times_of_peers_are_no_peers_of_each_other() -> None:
    worker, other = ((1, 0),), ((0, 0),)
    steps = (int(REPLAYED.steps[0]),)
    together = ask(Change(Selection(workers=worker + other, steps=steps), BaseDurations.PEERS))
    apart = ask(
        Change(Selection(workers=worker, steps=steps), BaseDurations.PEERS),
        Change(Selection(workers=other, steps=steps), BaseDurations.PEERS),
    )
    assert apart.answer_s == pytest.approx(together.answer_s, rel=1e-12)


def test_a_stage_without_a_rank_that_stays_has_no_peers() -> None:
    with pytest.raises(
        InvalidQuestionError, match="All DP ranks of stage 1 are replaced"
    ) as caught:
        ask(
            Change(Selection(stages=(0,)), BaseDurations.IDEAL),
            Change(Selection(stages=(1,)), BaseDurations.PEERS),
        )
    assert [(f.code, f.column) for f in caught.value.faults] == [("no_peers", "changes[1].select")]


def test_a_session_as_it_is_has_its_headline_in_the_answer() -> None:
    same = ask(Change(Selection(stages=(0,)), BaseDurations.RECORDED))
    document = same.as_document(Against("causes", 1.6))
    now_s = document["simulated_step_time_s"]
    assert document["reference"] == {
        "kind": "causes",
        "step_time_s": pytest.approx(now_s / 1.6),
        "slowdown": pytest.approx(1.6),
    }


@pytest.mark.parametrize(
    ("selection", "path"),
    [
        (Selection(), "changes[0].select"),
        (Selection(op_types=("separate-grads-all-reduce",)), "changes[0].select.op_types"),
        (Selection(steps=(1,)), "changes[0].select.steps"),
        (Selection(stages=(2,)), "changes[0].select.stages"),
        (Selection(dp_ranks=(3,)), "changes[0].select.dp_ranks"),
        (Selection(workers=((0, 2),)), "changes[0].select.workers"),
    ],
)
def test_a_change_of_a_missing_part_is_refused_at_its_place(
    selection: Selection, path: str
) -> None:
    with pytest.raises(InvalidQuestionError) as caught:
        ask(Change(selection, BaseDurations.IDEAL))
    assert [fault.column for fault in caught.value.faults] == [path]


def test_a_name_for_several_types_is_refused_by_that_name() -> None:
    transfers = [TRACE.op_names.index(name) for name in ("backward-send", "backward-recv")]
    replayed = prepare_replay(select(TRACE, ~np.isin(TRACE.op, transfers)))
    either = Question(
        changes=(Change(Selection(op_types=("forward-pp-comm",)), BaseDurations.IDEAL),)
    )
    assert answer(replayed, either).answer_s.shape == replayed.steps.shape
    absent = Question(
        changes=(Change(Selection(op_types=("backward-pp-comm",)), BaseDurations.IDEAL),)
    )
    with pytest.raises(InvalidQuestionError, match="no backward-pp-comm in its replay"):
        answer(replayed, absent)


def test_no_more_faults_are_named_than_a_person_reads() -> None:
    with pytest.raises(InvalidQuestionError) as caught:
        ask(Change(Selection(stages=tuple(range(2, 1000))), BaseDurations.IDEAL))
    assert len(caught.value.faults) == 10

from __future__ import annotations

from app.analysis.replay.what_if import TYPE_NAMES
from app.analysis.report.document import Report
from app.sessions.pages.session import report_view
from app.sessions.pages.what_if import what_if_form
from app.sessions.questions import WrittenQuestion
from app.web.format import seconds
from tests.support.reports import changed


def test_the_form_offers_what_the_session_has_costliest_first(slow_worker: Report) -> None:
    form = what_if_form(slow_worker)
    groups, names = form.op_types[:1], [choice.value for choice in form.op_types[1:]]
    costs = [slow_worker.by_optype[name] for name in names]
    assert costs == sorted(costs, reverse=True)
    assert groups[0].name == "all computing"
    assert set(groups[0].value.split(".")) == {"forward-compute", "backward-compute"}


def test_every_offered_type_can_be_asked_about(slow_worker: Report) -> None:
    for choice in what_if_form(slow_worker).op_types:
        names = choice.value.split(".")
        assert set(names) <= set(TYPE_NAMES)
        WrittenQuestion.model_validate({"changes": [{"select": {"op_types": names}}]})


def test_one_type_of_computing_is_no_group(slow_worker: Report) -> None:
    by_optype = {k: v for k, v in slow_worker.by_optype.items() if k != "backward-compute"}
    form = what_if_form(changed(slow_worker, by_optype=by_optype))
    names = [choice.value for choice in form.op_types]
    assert "forward-compute" in names
    assert not any("." in name for name in names)


def test_answers_are_held_against_the_step_without_its_causes(slow_worker: Report) -> None:
    form = what_if_form(slow_worker)
    shown = slow_worker.headline
    assert form.reference == seconds(shown.reference_step_time_s)
    ideal_s = sum(slow_worker.step_times.ideal) / len(slow_worker.step_times.ideal)
    assert form.ideal_slowdown == f"{ideal_s / shown.reference_step_time_s:.3f}×" > "1.000×"
    assert "against the job without its causes" in form.note


def test_where_the_headline_is_s_the_ideal_is_the_reference(healthy: Report) -> None:
    form = what_if_form(healthy)
    assert (form.reference, form.ideal_slowdown) == ("", "1.000×")
    assert "published S" in form.note


def test_answers_are_held_against_the_step_as_it_is_and_as_ideal(
    slow_worker: Report,
) -> None:
    form = what_if_form(slow_worker)
    times_s = slow_worker.step_times
    count = len(times_s.ideal)
    assert form.now == seconds(sum(times_s.simulated) / count)
    assert form.ideal == seconds(sum(times_s.ideal) / count)
    assert form.now_slowdown == f"{slow_worker.headline.slowdown:.3f}×"
    simulated = report_view(slow_worker).data["simulated_s"]
    assert len(simulated) == count

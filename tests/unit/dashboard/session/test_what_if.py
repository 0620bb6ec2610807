from __future__ import annotations

from typing import Any

from app.analysis.replay.questions import TYPE_NAMES
from app.dashboard.look.format import seconds
from app.dashboard.session.report import report_view
from app.dashboard.session.what_if import what_if_form
from app.inputs.sessions.question import parse_question


def test_the_form_offers_what_the_session_has_costliest_first(slow_worker: dict[str, Any]) -> None:
    form = what_if_form(slow_worker)
    groups, names = form.op_types[:1], [choice.value for choice in form.op_types[1:]]
    costs = [slow_worker["by_optype"][name] for name in names]
    assert costs == sorted(costs, reverse=True)
    assert groups[0].name == "all computing"
    assert set(groups[0].value.split(".")) == {"forward-compute", "backward-compute"}


def test_every_offered_type_can_be_asked_about(slow_worker: dict[str, Any]) -> None:
    for choice in what_if_form(slow_worker).op_types:
        names = choice.value.split(".")
        assert set(names) <= set(TYPE_NAMES)
        parse_question({"changes": [{"select": {"op_types": names}}]})


def test_types_that_say_nothing_are_not_offered(slow_worker: dict[str, Any]) -> None:
    slow_worker["by_optype"] |= {"backward-compute": None}
    names = [choice.value for choice in what_if_form(slow_worker).op_types]
    assert "backward-compute" not in names
    assert "forward-compute" in names
    assert not any("." in name for name in names), "one type of computing is no group"


def test_answers_are_held_against_the_step_as_it_is_and_as_ideal(
    slow_worker: dict[str, Any],
) -> None:
    form = what_if_form(slow_worker)
    times_s = slow_worker["step_times"]
    count = len(times_s["ideal"])
    assert form.now == seconds(sum(times_s["simulated"]) / count)
    assert form.ideal == seconds(sum(times_s["ideal"]) / count)
    assert form.now_slowdown == f"{slow_worker['slowdown']:.3f}×"
    simulated = report_view(slow_worker).data["simulated_s"]
    assert len(simulated) == count

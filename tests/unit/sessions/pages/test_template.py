"""The template that the page of a session recommends."""

from __future__ import annotations

from dataclasses import replace

from app.analysis.mitigation.fixes import PlannedTemplate, StageLayers, StageTimes, WithheldTemplate
from app.analysis.report.document import Report
from app.sessions.pages.exports import template_csv
from app.sessions.pages.template import SessionTemplate, session_template

PLANNED = PlannedTemplate(
    layers=StageLayers(today=(8, 8), template=(11, 5)),
    stage_ms=StageTimes(today=(10.0, 20.0), template=(13.0, 12.5)),
    worker_of_stage=(0, 1),
    speed_of_worker=(1.0, 0.5),
    embedding=False,
    head=False,
    microbatches=8,
    proven=True,
    predicted_step_time=0.8,
    predicted_gain=0.2,
)


def region(
    report: Report, template: PlannedTemplate | WithheldTemplate | None
) -> SessionTemplate | None:
    return session_template(replace(report, template=template))


def test_the_template_of_a_session_is_next_to_the_current_layout(slow_worker: Report) -> None:
    found = region(slow_worker, PLANNED)
    assert found is not None
    now, recommended = found.sides
    assert [stage.label for stage in now.stages] == ["8", "8"]
    assert [stage.label for stage in recommended.stages] == ["11", "5"]
    assert recommended.stages[1].workers == "2.00× slower"
    assert recommended.stages[1].anchor == "end"
    assert "Workers move" not in found.remarks


def test_a_template_of_a_session_is_shown_from_two_per_cent_on(slow_worker: Report) -> None:
    assert region(slow_worker, replace(PLANNED, predicted_gain=0.019)) is None
    assert region(slow_worker, replace(PLANNED, predicted_gain=0.021)) is not None
    assert region(slow_worker, None) is None


def test_a_gain_that_may_be_less_is_shown_as_an_upper_bound(slow_worker: Report) -> None:
    sure = region(slow_worker, PLANNED)
    open_ = region(slow_worker, replace(PLANNED, at_most=True))
    assert sure is not None
    assert open_ is not None
    assert "up to" not in sure.title + sure.remarks
    assert "saves up to 20" in open_.title
    assert "may be less" in open_.remarks


def test_a_withheld_template_says_why(slow_worker: Report) -> None:
    found = region(slow_worker, WithheldTemplate("layers_unknown", "no layer counts"))
    assert found is not None
    assert (found.sides, found.note) == ((), "no layer counts")


def test_the_file_has_every_stage_now_and_as_recommended(slow_worker: Report) -> None:
    table = template_csv(replace(slow_worker, template=PLANNED))
    assert table.text().splitlines() == [
        "division,stage,workers_of_stage,layers,microbatch_ms",
        "now,0,0,8,10.0",
        "now,1,1,8,20.0",
        *(
            f"recommended,{stage},{worker},{layers},{time}"
            for stage, (worker, layers, time) in enumerate(
                zip(PLANNED.worker_of_stage, (11, 5), (13.0, 12.5), strict=True)
            )
        ),
    ]

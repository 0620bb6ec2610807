"""The pages of plans, and the CSV files of their figures."""

from __future__ import annotations

import csv
import io
import json
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from app.analysis.json_text import plain, to_json
from app.analysis.planning.build import plan_document, simulated_iteration
from app.analysis.planning.document import NoAnswer
from app.analysis.planning.plan import plan
from app.plans.pages.parts import blocks_of, layer_ticks, method_rows
from app.plans.pages.plan import plan_page, sentence
from app.plans.pages.routes import FILES
from app.plans.read import PlanSummary, PlanView, requested_plan
from app.plans.requests import PlanResult
from app.plans.specs.spec import parse_spec
from app.web.tables import Table
from tests.support.plans import small_spec

NOW = datetime(2026, 11, 20, 9, 30, tzinfo=UTC)


@pytest.fixture(scope="module")
def result() -> PlanResult:
    found = plan(parse_spec(small_spec()))
    return PlanResult(plan_document(found), simulated_iteration(found.problem, found.template))


def view(state: str, **changes: Any) -> PlanView:  # noqa: ANN401 - columns differ in type
    row: dict[str, Any] = {
        "id": uuid.uuid4(),
        "name": None,
        "method": "optimal",
        "objective": "t_std",
        "time_limit_s": 60.0,
        "layers": 12,
        "gpus": 8,
        "state": state,
        "created_at": NOW,
        "state_changed_at": NOW,
        "gap": None,
        "reason_code": None,
        "reason": None,
        "outline": None,
    }
    whole: dict[str, Any] = {"faults": (), "ahead": 0, "result": None}
    for name, value in changes.items():
        (row if name in row else whole)[name] = value
    spec = small_spec()
    return PlanView(
        row=PlanSummary(**row), spec=spec, requested=requested_plan(spec), now=NOW, **whole
    )


def test_the_sentence_says_what_is_proven_and_what_others_take(result: PlanResult) -> None:
    said = sentence(result.plan).replace("\N{NO-BREAK SPACE}", " ")
    assert "ms an iteration, proven optimal; Ditto’s template takes" in said
    open_ = replace(
        result.plan,
        optimal=False,
        lower_bound_ms=result.plan.iteration_time_ms.simulated / 1.25,
        comparison={"ditto": NoAnswer("too few layers")},
    )
    assert sentence(open_).endswith("at most 25\N{NO-BREAK SPACE}% above what is possible")
    standard = replace(open_, objective="t_std", optimal=True)
    assert sentence(standard).endswith("an iteration, proven optimal by t_std")
    greedy = replace(open_, method="greedy", lower_bound_ms=None)
    assert sentence(greedy).endswith("an iteration by Greedy")


def test_blocks_cover_every_layer_once(result: PlanResult) -> None:
    blocks = blocks_of(result.plan.stages, result.plan.layers, ["a6000", "v100"])
    assert blocks[0].left == 0
    for before, after in pairwise(blocks):
        assert before.left + before.width == pytest.approx(after.left, abs=0.01)
    assert blocks[-1].left + blocks[-1].width == pytest.approx(100, abs=0.01)
    assert {block.color for block in blocks} == {1, 2}


@pytest.mark.parametrize("layers", [1, 2, 7, 12, 50, 96, 98, 1000])
def test_the_axis_begins_and_ends_with_the_layers(layers: int) -> None:
    ticks = layer_ticks(layers)
    assert (ticks[0], ticks[-1]) == ((0.0, "0"), (100.0, str(layers)))
    places = [place for place, _ in ticks]
    assert places == sorted(set(places))
    assert len(ticks) <= 8


def test_methods_are_held_against_the_best_and_say_why_there_is_none(result: PlanResult) -> None:
    comparison = {**result.plan.comparison, "greedy": NoAnswer("devices do not come out even")}
    rows = method_rows(replace(result.plan, comparison=comparison), ["a6000", "v100"])
    assert [row.name for row in rows] == ["Optimal", "Ditto", "Greedy"]
    assert [row.own for row in rows] == [True, False, False]
    assert rows[0].over == ""
    assert max(row.share for row in rows) == 100
    assert rows[2].reason == "devices do not come out even"


@pytest.mark.parametrize(
    ("state", "changes", "heading"),
    [
        ("queued", {"ahead": 2}, "This plan waits for a worker"),
        ("planning", {"gap": 0.013}, "A worker is searching for the best pipeline"),
        ("canceled", {}, "This plan was canceled"),
        ("infeasible", {"reason": "no template fits"}, "No template fits"),
        ("failed", {"reason": "it broke"}, "Planning failed: it broke"),
    ],
)
def test_every_state_has_its_words(state: str, changes: dict[str, Any], heading: str) -> None:
    page = plan_page(view(state, **changes))
    assert page.heading.startswith(heading)
    assert page.template is None
    assert page.status == state
    if "gap" in changes:
        assert "1.3\N{NO-BREAK SPACE}%" in [fact.value for fact in page.facts]


def test_a_found_template_fills_its_page(result: PlanResult) -> None:
    page = plan_page(view("planned", result=result))
    assert page.template is not None
    assert page.state.word == "Proven optimal"
    assert len(page.template.stages) == len(result.plan.stages)
    assert page.template.text.count("\n") == len(result.plan.stages) - 1
    assert max(stage.time_share for stage in page.template.stages) == 100
    assert page.template.data["starts"] == plain(result.timeline.starts)
    assert [fact.label for fact in page.facts] == [
        *("Iteration", "Proof", "Stages", "GPU time idle", "Planned in", "Memory")
    ]


def test_the_folding_of_ditto_is_shown_next_to_its_template(result: PlanResult) -> None:
    page = plan_page(view("planned", result=result))
    assert page.template is not None
    remarks = {row.name: row.remark.replace("\xa0", " ") for row in page.template.methods}
    assert remarks["Optimal"] == ""
    assert remarks["Ditto"].startswith("folded into ")


def file_text(name: str, result: PlanResult) -> str:
    made = FILES[name](result)
    return made.text() if isinstance(made, Table) else made


def test_a_plan_that_is_too_large_to_draw_is_reported(result: PlanResult) -> None:
    large = replace(result, timeline=replace(result.timeline, starts=None))
    page = plan_page(view("planned", result=large))
    assert page.template is not None
    assert "Too many computations" in page.template.schedule_note
    assert file_text("schedule.csv", large).count("\n") == 1


@pytest.mark.parametrize(
    ("name", "rows"), [("template.csv", 4), ("methods.csv", 3), ("schedule.csv", 2 * 4 * 16)]
)
def test_files_hold_a_row_for_each_thing_drawn(result: PlanResult, name: str, rows: int) -> None:
    assert len(result.plan.stages) == 4
    assert len(list(csv.DictReader(io.StringIO(file_text(name, result))))) == rows


def test_the_json_file_is_the_document(result: PlanResult) -> None:
    assert (
        FILES["plan.json"](result) == json.dumps(json.loads(to_json(result.plan)), indent=1) + "\n"
    )

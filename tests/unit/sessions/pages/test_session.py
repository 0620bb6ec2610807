from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from app.analysis.diagnosis.finding import Links
from app.analysis.diagnosis.locations import (
    FigureView,
    LinkView,
    RegionView,
    StageView,
    StepView,
    View,
    WorkerView,
)
from app.analysis.replay.layout.dense import DroppedStep
from app.analysis.report.document import Report, UnjudgedCause
from app.sessions.pages.facts import launch_fact, verdict_facts
from app.sessions.pages.findings import exact_rows, step_slowdowns
from app.sessions.pages.session import report_view
from app.sessions.pages.tables import LONG_TABLE
from tests.support.reports import changed


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


NBSP = "\N{NO-BREAK SPACE}"


def with_evidence(report: Report, view: View | None, **members: Any) -> Report:  # noqa: ANN401 - of a cause
    """Return a report whose first cause has one line of evidence."""
    cause = replace(report.causes[0], evidence=("so it is",), views=(view,), **members)
    return changed(report, causes=(cause,))


def test_the_worst_step_and_the_worst_worker_are_chosen_at_first(
    slow_worker: Report,
) -> None:
    chosen = report_view(slow_worker).chosen
    slowdowns = slow_worker.step_slowdown
    assert slowdowns[chosen.index] == max(slowdowns)
    assert (chosen.dp, chosen.pp) == (1, 2)
    assert not chosen.by_request


def test_the_address_chooses_existing_parts_and_nothing_else(slow_worker: Report) -> None:
    step = slow_worker.steps.analyzed[3]
    chosen = report_view(slow_worker, step=step, dp=2, pp=0).chosen
    assert (chosen.step, chosen.dp, chosen.pp, chosen.by_request) == (step, 2, 0, True)
    other = report_view(slow_worker, step=-1, dp=99, pp=0).chosen
    assert (other.dp, other.pp, other.by_request) == (1, 2, False)


@pytest.mark.parametrize(
    ("lanes", "ranks", "words"),
    [(12, (), "step {}"), (8, (1, 2), "step {}, DP ranks 1 to 2"), (1, (2,), "step {}, DP rank 2")],
)
def test_the_file_of_a_timeline_has_the_dp_ranks_that_are_drawn(
    slow_worker: Report,
    monkeypatch: pytest.MonkeyPatch,
    lanes: int,
    ranks: tuple[int, ...],
    words: str,
) -> None:
    monkeypatch.setattr("app.sessions.pages.session.LANES", lanes)
    step = slow_worker.steps.analyzed[0]
    chosen = report_view(slow_worker, step=step, dp=2, pp=0).chosen
    assert chosen.ranks == ranks
    assert chosen.timeline_query == "&".join([f"step={step}", *(f"dp={rank}" for rank in ranks)])
    assert chosen.timeline_words == words.format(step)


def test_workers_are_listed_slowest_first_with_host_and_gpu(slow_worker: Report) -> None:
    workers = report_view(slow_worker).workers
    assert workers.total == 12
    first = workers.rows[0]
    rank = slow_worker.workers.rank[1][2]
    assert (first.dp, first.pp) == (1, 2)
    assert first.place == slow_worker.hosts[rank]
    assert [row.slowdown for row in workers.rows] == sorted(
        (row.slowdown for row in workers.rows), reverse=True
    )


def test_without_hosts_the_rank_is_shown_instead(slow_worker: Report) -> None:
    slow_worker = changed(slow_worker, hosts={}, gpus={})
    view = report_view(slow_worker)
    rank = slow_worker.workers.rank[1][2]
    assert view.workers.rows[0].place == str(rank)
    places = view.data["places"]
    assert places["hosts"] == [(None, 12)]
    assert places["ranks"][2 * slow_worker.sizes.dp + 1] == rank


def test_a_huge_job_lists_its_slowest_workers_only(slow_worker: Report) -> None:
    dp, pp = 64, 16
    slowdowns = [[1.0 + 0.001 * rank] * pp for rank in range(dp)]
    report = changed(
        slow_worker,
        sizes__dp=dp,
        sizes__pp=pp,
        workers__rank=[[rank * pp + stage for stage in range(pp)] for rank in range(dp)],
        by_worker__exact=slowdowns,
        by_worker__approximate=slowdowns,
        by_worker__forward_ratio=slowdowns,
        by_worker__backward_ratio=slowdowns,
    )
    workers = report_view(report).workers
    assert (len(workers.rows), workers.total) == (LONG_TABLE, dp * pp)


def test_fixes_share_one_axis_with_the_reference(slow_worker: Report) -> None:
    fixes = report_view(slow_worker).fixes
    assert fixes.rows[0].share == pytest.approx(100)
    assert fixes.rows[1].strong
    # The best fix shortens the step at most to the reference.
    assert 0 < fixes.reference_share <= fixes.rows[1].share < 100
    assert fixes.reference.startswith("without its causes, ")


def test_without_a_verdict_the_fix_of_the_cause_starts_from_the_late_step(
    distrusted: Report,
) -> None:
    view = report_view(distrusted)
    now, fix = view.fixes.rows
    assert not view.verdict
    recorded = distrusted.step_times.recorded
    assert float(now.text.split()[0]) == pytest.approx(sum(recorded) / len(recorded), rel=0.03)
    assert now.share == pytest.approx(100)
    assert fix.strong


def test_without_a_fix_the_page_says_why(healthy: Report) -> None:
    healthy = changed(healthy, recommendations=[])
    fixes = report_view(healthy).fixes
    assert fixes.rows == ()
    assert fixes.empty


def test_unjudged_causes_are_named(slow_worker: Report) -> None:
    slow_worker = changed(
        slow_worker,
        diagnosis__ruled_out=("network", "data_loading"),
        diagnosis__cannot_judge=(
            UnjudgedCause("memory_fragmentation", "TP is 1"),
            UnjudgedCause("tensor_parallel_straggler", "TP is 1"),
        ),
    )
    first, *_, not_found, unjudged = report_view(slow_worker).causes
    assert first.strong
    assert (not_found.name, not_found.evidence[0].text) == ("Not found", "network and data loading")
    assert unjudged.name == "Memory fragmentation and tensor-parallel straggler"
    assert unjudged.evidence[0].text == "unknown: TP is 1"


@pytest.mark.parametrize(
    ("view", "url"),
    [
        (WorkerView(dp=3, pp=1), "?dp=3&pp=1"),
        (FigureView(), "#picture-slow-worker"),
        (FigureView(part="squares"), ""),
        (StepView(step=821), "?step=821"),
        (RegionView(view="scatter"), "#scatter"),
        (StageView(pp=2), "?dp=1&pp=2"),
        (RegionView(view="map"), "#heatmap"),
        (None, ""),
    ],
)
def test_evidence_leads_to_where_it_is_seen(
    slow_worker: Report, view: View | None, url: str
) -> None:
    evidence = report_view(with_evidence(slow_worker, view)).causes[0].evidence[0]
    assert (evidence.text, evidence.url) == ("so it is", url)


def test_a_link_leads_to_the_matrix_of_links(slow_worker: Report) -> None:
    report = with_evidence(
        slow_worker,
        LinkView(dp=0, from_=0, to=1),
        cause="network",
        figure=Links(ends=((0, 1),), ratio=((8.0, 1.0),)),
    )
    (cause, *_) = report_view(report).causes
    assert cause.evidence[0].url == f"#{cause.pictures[0].id}"


@pytest.mark.parametrize(
    ("view", "url"),
    [
        (StepView(step=7), "#launches"),
        (FigureView(), "#picture-data-loading"),
        (WorkerView(dp=0, pp=0), ""),
    ],
)
def test_without_a_verdict_evidence_leads_to_what_is_on_the_page(
    distrusted: Report, view: View, url: str
) -> None:
    report = with_evidence(distrusted, view)
    assert report_view(report).causes[0].evidence[0].url == url


def test_the_slowdown_has_one_rounding_and_the_rest_follows_it(slow_worker: Report) -> None:
    known = changed(slow_worker, headline__ci95=(1.5, 1.54), headline__ci95_reason=None)
    slowdown = verdict_facts(known)[0]
    assert (slowdown.label, slowdown.value) == ("Slowdown", "1.52×")
    assert plain(slowdown.note) == "95 %: 1.50–1.54"
    assert plain(slowdown.hint).startswith("1.522×, 95 %: 1.500–1.540: step time")
    first, published, worst, lost, _steps = exact_rows(known)
    assert (first.label, first.value) == ("Slowdown", "1.522×")
    assert plain(first.note).startswith("95 %: 1.500–1.540; step time")
    assert known.slowdown_ci95 is not None
    low, high = known.slowdown_ci95
    assert (published.label, published.value) == ("S, as published", "1.426×")
    assert plain(published.note).startswith(f"95 %: {low:.3f}–{high:.3f}; ")
    assert published.note.endswith("its ideal is a mean over all workers, stragglers included")
    assert plain(worst.label) == "S<sub>w</sub> of worker (1, 2), the highest"
    assert plain(lost.value) == "34.3 %"


def test_an_interval_that_rounds_to_one_number_says_how_narrow_it_is(slow_worker: Report) -> None:
    narrow = changed(slow_worker, headline__ci95=(1.521, 1.523), headline__ci95_reason=None)
    assert plain(verdict_facts(narrow)[0].note) == "95 %: within 0.01"


def test_a_slowdown_without_an_interval_says_why(slow_worker: Report) -> None:
    few = slow_worker
    assert verdict_facts(few)[0].note == "no interval"
    assert "it needs 20 steps, to tell how often a job has spells" in verdict_facts(few)[0].hint
    assert "it needs 20 steps, to tell how often a job has spells" in exact_rows(few)[0].note


@pytest.mark.parametrize(
    ("named", "why"),
    [(False, "no cause is named"), (True, "over 10 % of the lost time has no known cause")],
)
def test_where_the_slowdown_is_s_the_page_says_why(
    slow_worker: Report, *, named: bool, why: str
) -> None:
    published = changed(
        slow_worker,
        headline__kind="published",
        headline__slowdown=slow_worker.slowdown,
        causes=slow_worker.causes if named else (),
    )
    first, second = verdict_facts(published)[:2]
    assert (first.label, second.label) == ("Slowdown", "GPU-hours lost")
    assert exact_rows(published)[0].note.endswith(f"it is the published S: {why}")
    assert "S, as published" not in {row.label for row in exact_rows(published)}


def test_steps_are_as_slow_as_the_job_that_they_make(slow_worker: Report) -> None:
    steps = step_slowdowns(slow_worker)
    factor = slow_worker.headline.slowdown / slow_worker.slowdown
    assert steps == pytest.approx([factor * value for value in slow_worker.step_slowdown])
    assert report_view(slow_worker).data["step_slowdown"] == pytest.approx(steps, abs=1e-4)


def test_no_fix_saves_more_than_is_lost(slow_worker: Report) -> None:
    facts = {fact.label: fact for fact in verdict_facts(slow_worker)}
    lost = float(facts["GPU-hours lost"].note.split()[0])
    saved = float(report_view(slow_worker).fixes.saves.split()[0])
    assert 0.9 * lost < saved <= lost


def test_a_runner_up_that_costs_too_little_is_named_as_such(slow_worker: Report) -> None:
    slow_worker = changed(
        slow_worker,
        causes=(replace(slow_worker.causes[0], runner_up="network"),),
        diagnosis__ruled_out=("network", "data_loading"),
        diagnosis__cannot_judge=(),
    )
    (runner_up,) = (fact for fact in verdict_facts(slow_worker) if fact.label == "Runner-up")
    assert (runner_up.value, runner_up.note) == ("Network", "costs too little to name")
    _, cheap, not_found = report_view(slow_worker).causes
    assert (cheap.name, cheap.muted) == ("Network", True)
    assert "costs too little" in cheap.evidence[0].text
    assert (not_found.name, not_found.evidence[0].text) == ("Not found", "data loading")


def test_dropped_steps_and_unknown_types_are_named(slow_worker: Report) -> None:
    slow_worker = changed(
        slow_worker,
        steps__dropped=[DroppedStep(number, "warm-up") for number in range(10)],
        steps__odd=[DroppedStep(11, "all ranks compute 6.0× as long as in other steps")],
        coverage__unknown_op_types={"moe-all-to-all": 7},
        coverage__unanswered={"forward-send": 7, "backward-send": 8},
    )
    rows = {row.label: row for row in report_view(slow_worker).coverage}
    assert rows["Steps left out"].note.endswith("7: warm-up, and 2 more")
    assert rows["Odd steps"].note == "11: all ranks compute 6.0× as long as in other steps"
    assert rows["Operations of unknown types"].note == "moe-all-to-all (7)"
    assert rows["Sends without receives, left out"].value == "15"


def test_the_data_for_the_script_is_json(slow_worker: Report) -> None:
    data = json.loads(json.dumps(report_view(slow_worker).data, allow_nan=False))
    steps = len(slow_worker.steps.analyzed)
    assert (len(data["by_dp_step"]), len(data["by_dp_step"][0])) == (3, steps)
    assert (len(data["by_pp_step"]), len(data["by_pp_step"][0])) == (4, steps)
    assert set(data["figures"]) == {"strip", "scatter", "launch"}
    assert data["map"][2][1] == pytest.approx(slow_worker.by_worker.exact[1][2], abs=5e-4)


def test_without_a_verdict_nothing_that_rests_on_the_replay_is_sent(
    distrusted: Report,
) -> None:
    view = report_view(distrusted)
    assert not view.verdict
    assert set(view.data["figures"]) == {"launch", "recorded"}
    assert not {"slowdown", "map", "by_dp", "by_pp", "step_slowdown"} & set(view.data)


def test_no_worker_is_named_where_none_launches_latest(distrusted: Report) -> None:
    none = changed(distrusted, fidelity__late_launches=())
    assert launch_fact(none).note.endswith("of each step, before it")


def test_clocks_that_disagree_are_warned_of(slow_worker: Report) -> None:
    slow_worker = changed(slow_worker, clocks__warnings=["Clocks are up to 30.0 ms apart"])
    rows = {row.label: row for row in report_view(slow_worker).coverage}
    assert rows["Clocks"].note.endswith("; Clocks are up to 30.0 ms apart")


def test_a_cause_with_a_confidence_shows_it(slow_worker: Report) -> None:
    slow_worker = changed(slow_worker, causes=(replace(slow_worker.causes[0], confidence=0.98),))
    view = report_view(slow_worker)
    assert view.confidences
    assert view.causes[0].confidence == f"98{NBSP}%"

"""The live page of a job: its sentence and the heading of its map."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from app.analysis.pulse.notices import Evidence, NoticeKind
from app.pulse.live import LiveJob, NoticeRow
from app.pulse.pages import live_view
from app.pulse.spans import SlowRank, SpanRow

NOW = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
SLOW_LAST = (
    "A step takes 1.00\u00a0s; in the last minute rank 5 computed 1.40× as long as its peers"
)
AS_LONG = "All ranks compute as long as their peers"


def minute(ratio: float, rank: int = 5) -> SpanRow:
    return SpanRow(
        attempt=1,
        start=NOW - timedelta(seconds=121),
        ranks=8,
        steps=60,
        step_median_s=1.0,
        step_p95_s=1.1,
        step_worst_s=1.2,
        compute_median_s=0.8,
        compute_p95_s=0.9,
        tokens_per_s=None,
        lost_gpu_s=0.0,
        slowest=[SlowRank(rank, "node-001", 1, ratio)],
    )


def notice(
    kind: NoticeKind = NoticeKind.SLOW_RANK,
    ranks: tuple[int, ...] = (3,),
    factor: float | None = 1.31,
    cleared_s: int | None = None,
) -> NoticeRow:
    return NoticeRow(
        attempt=1,
        number=0,
        kind=kind,
        ranks=list(ranks),
        hosts=["node-000"] if ranks else [],
        factor=factor,
        from_step=100,
        noticed_step=104,
        noticed_time_ns=0,
        noticed_at=NOW - timedelta(seconds=40),
        cleared_step=None if cleared_s is None else 150,
        evidence=Evidence("rank 3 (node-000): what was seen"),
        cleared_at=None if cleared_s is None else NOW - timedelta(seconds=cleared_s),
        outcome=None,
        session=None,
        cause="",
        gpu_hours=0.0,
    )


def job(ratio: float, *notices: NoticeRow, ranks: int = 8) -> LiveJob:
    return LiveJob(
        job="llm",
        now=NOW,
        attempt=1,
        heard_at=NOW,
        sends=True,
        ranks=ranks,
        step_s=1.0,
        minutes=[minute(ratio)],
        notices=list(notices),
        request=None,
    )


@pytest.mark.parametrize(
    ("live", "title", "said"),
    [
        # The slowdown began after the last stored minute.
        (
            job(1.0, notice()),
            "Rank 3 (node-000) computes longer than its peers",
            "Rank 3 (node-000): what was seen",
        ),
        (
            job(1.0, notice(ranks=(2, 3), kind=NoticeKind.SPELLS)),
            "Ranks 2, 3 (node-000) compute longer than their peers at times",
            "Rank 3 (node-000): what was seen",
        ),
        (
            job(1.0, notice(), ranks=1),
            "Rank 3 (node-000) computes longer than before",
            "Rank 3 (node-000): what was seen",
        ),
        # The last stored minute still contains the slowdown.
        (
            job(1.4, notice(cleared_s=20)),
            "Rank 3 (node-000) computed longer than its peers until a moment ago",
            "A step takes 1.00\u00a0s; no rank is slow any more",
        ),
        (
            job(1.0, notice(NoticeKind.HANG, (), None)),
            "Computing of the ranks until no step ended any more",
            "Rank 3 (node-000): what was seen",
        ),
        # A notice without ranks, in which all ranks compute as usual.
        (job(1.0, notice(NoticeKind.SLOW_JOB, ())), AS_LONG, "Rank 3 (node-000): what was seen"),
        (
            job(1.4),
            "Rank 5 (node-001, GPU\u00a01) computes 1.40× as long as its peers",
            SLOW_LAST,
        ),
        (job(1.0), AS_LONG, "A step takes 1.00\u00a0s; no rank is slow"),
    ],
)
def test_the_map_s_heading_and_the_sentence_tell_of_the_same(
    live: LiveJob, title: str, said: str
) -> None:
    view = live_view(live)
    assert (view.map_title, view.heading) == (title, said)


def test_the_spread_of_the_step_time_is_also_of_the_minute_that_goes_on() -> None:
    # Steps take twice as long since a few seconds; the sentence gives this new median.
    goes_on = replace(minute(1.0), start=NOW - timedelta(seconds=1), step_p95_s=2.1)
    live = replace(job(1.0), step_s=2.0, minutes=[minute(1.0), goes_on])
    [step] = [one for one in live_view(live).facts if one.label == "Step time"]
    assert (step.value, step.note) == ("2.00\u00a0s", "p95 2.10\u00a0s, worst 1.20\u00a0s")


@pytest.mark.parametrize(("steps", "compared"), [(19, "Rank 5, 1.00×"), (20, "Rank 3, 1.50×")])
def test_ranks_are_compared_in_the_minute_under_way_once_it_has_enough_steps(
    steps: int, compared: str
) -> None:
    goes_on = replace(minute(1.5, rank=3), start=NOW - timedelta(seconds=9), steps=steps)
    live = replace(job(1.0), minutes=[minute(1.0), goes_on])
    assert [one.value for one in live_view(live).facts if one.label == "Longest computing"] == [
        compared
    ]


def test_the_lines_of_a_job_that_just_began_are_headed_by_its_step_time() -> None:
    live = replace(job(1.0), step_s=1.5, minutes=[minute(1.0)])
    assert live_view(live).steps.title == "A step takes 1.50\u00a0s"

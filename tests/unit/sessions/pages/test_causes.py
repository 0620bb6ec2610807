"""The small figures next to causes, from real analyses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.analysis.diagnosis.finding import (
    FigureData,
    HeldLaunches,
    LateLaunches,
    LateRanks,
    Lengths,
    Links,
    Spread,
    StageLoad,
    Stalls,
    WorkerSteps,
)
from app.analysis.report.document import NamedCause
from app.sessions.pages.causes import HEIGHT, MOST_BARS, WIDTH, Picture, cause_pictures
from tests.support import reports
from tests.support.reports import slow_worker


def cause(name: str, figure: FigureData | None) -> NamedCause:
    return replace(slow_worker().causes[0], cause=name, figure=figure)


def drawn(figure: FigureData) -> Picture:
    return cause_pictures(cause("slow_worker", figure))[0]


def within(picture: Picture) -> bool:
    return all(
        mark.x >= 0
        and mark.y >= 0
        and mark.x + mark.width <= WIDTH + 0.1
        and mark.y + mark.height <= HEIGHT + 0.1
        for mark in picture.marks
    )


@pytest.mark.parametrize(
    ("scenario", "caption"),
    [
        ("slow-worker", "÷ its peers in each step"),
        ("hot-device", "÷ its peers in each step"),
        ("stage-imbalance", "Computation of stages 0 to"),
        ("sequence-lengths", "How many microbatches take how much of the mean time"),
        ("sequence-lengths", "Σs² of the recorded sequence lengths (across)"),
        ("garbage-collection", "Stalled forwards in each step, all workers added, from 0"),
        ("garbage-collection", "Stalls by worker, stages (rows) of DP ranks (columns)"),
        ("memory-fragmentation", "For which rank of worker"),
        ("kernel-dependency", "Computations held up in each step, all workers added, from 0"),
        ("network", "Links between stages (rows) of DP ranks"),
        ("congestion", "All transfers ÷ those of quiet steps in each step, from 1.0"),
        ("data-loading", "Wait before the first operation in each step, from 0"),
        ("checkpoints", "Wait before the first operation in each step, from 0"),
        ("slow-launching", "Computations held up in each step, all workers added, from 0"),
        ("tensor-parallel", "For which rank of worker"),
        ("context-parallel", "For which rank of worker"),
        ("experts", "For which rank of worker"),
    ],
)
def test_every_cause_that_is_found_has_its_picture(scenario: str, caption: str) -> None:
    pictures = cause_pictures(reports.scenario(scenario).causes[0])
    assert any(caption in picture.caption for picture in pictures)
    for picture in pictures:
        assert picture.label
        assert picture.marks
        assert within(picture)


def test_bars_of_slowdown_start_at_one_and_have_the_fixed_scale() -> None:
    picture = drawn(WorkerSteps(worker=(1, 2), ratio=(1.0, 1.25, 1.5, 0.9)))
    half, whole = picture.marks
    assert (half.x, half.height, half.color) == (60.0, 20.0, "var(--s-125)")
    assert (whole.x, whole.height, whole.color) == (120.0, 40.0, "var(--s-150)")


def test_the_mean_of_the_stages_is_a_line() -> None:
    picture = drawn(StageLoad(relative=(0.8, 0.8, 0.8, 1.6)))
    assert picture.line == HEIGHT / 2 - 5
    assert [mark.height for mark in picture.marks] == [20.0, 20.0, 20.0, 40.0]
    assert picture.label.endswith("0.80×, 0.80×, 0.80×, 1.60×")


def test_more_steps_than_pixels_show_the_worst_of_each_few() -> None:
    values = [0.0] * 1000
    values[999] = 2.0
    picture = drawn(HeldLaunches(by_step_s=tuple(values)))
    assert len(picture.marks) == 1
    assert picture.marks[0].x > WIDTH - WIDTH / MOST_BARS - 1
    assert picture.caption.endswith("a bar is the worst of 17")


def test_large_matrices_are_drawn_with_the_worst_of_neighbors() -> None:
    ratio = [[1.0] * 1024 for _ in range(63)]
    ratio[62][1023] = 9.0
    ends = tuple((stage, stage + 1) for stage in range(63))
    picture = drawn(Links(ends=ends, ratio=tuple(map(tuple, ratio))))
    assert len(picture.marks) <= 600
    assert [mark.color for mark in picture.marks].count("var(--s-150)") == 1
    assert within(picture)
    assert "between stages 62 and 63 of DP rank 1023, takes 9.00×" in picture.label


def test_ranks_are_named_with_their_shares() -> None:
    figure = LateRanks(worker=(0, 1), ranks=(4, 5), share=(0.1, 0.9))
    picture = drawn(figure)
    assert "rank 5: 90" in picture.caption
    assert picture.label.replace("\xa0", " ").endswith("4 10 %, 5 90 %")


def test_stalls_are_counted_by_worker() -> None:
    figure = Stalls(by_step_s=(1.0,), by_worker=((0, 2), (4, 0), (2, 4)), longest_s=0.1)
    _, workers = cause_pictures(cause("garbage_collection", figure))
    assert workers.id == "picture-garbage-collection-workers"
    # two stages of three DP ranks
    assert [mark.color for mark in workers.marks] == [
        *("var(--s-100)", "var(--s-150)", "var(--s-125)"),
        *("var(--s-125)", "var(--s-100)", "var(--s-150)"),
    ]


def test_waits_are_shown_by_dp_rank_where_one_stands_out() -> None:
    figure = LateLaunches(by_step_s=(0.2, 0.3))
    assert len(cause_pictures(cause("data_loading", figure))) == 1
    figure = replace(figure, by_dp_s=(0.1, 0.4, 0.1))
    _, ranks = cause_pictures(cause("data_loading", figure))
    assert (ranks.id, [mark.height for mark in ranks.marks]) == (
        "picture-data-loading-ranks",
        [10.0, 40.0, 10.0],
    )
    assert "rank 1 up to 400" in ranks.caption


def test_lengths_without_records_have_no_squares() -> None:
    lengths = Lengths(spread=Spread(0.5, 2.0, (1, 4, 2)))
    (picture,) = cause_pictures(cause("sequence_length_imbalance", lengths))
    assert picture.id == "picture-sequence-length-imbalance-spread"
    assert [mark.height for mark in picture.marks] == [10.0, 40.0, 20.0]
    assert picture.caption.endswith("from 0.50× to 2.00×")


def test_a_cause_without_a_figure_has_no_picture() -> None:
    assert cause_pictures(cause("unknown", None)) == ()

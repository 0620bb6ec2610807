"""The tables of a comparison as CSV."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from app.dashboard.ui.csv_text import Table
from app.services.compare.ranges import CauseCount, TimesComparison
from app.services.compare.read import Comparison


def workers_csv(found: Comparison) -> Table:
    """Return the slowdown and host of every worker in both sessions; nothing without a verdict."""
    a, b = found.a.report, found.b.report
    rows: list[Sequence[object]] = []
    if a is not None and b is not None and found.same_shape:
        for dp, pp in itertools.product(range(found.a.row.dp), range(found.a.row.pp)):
            before, after = a.by_worker.exact[dp][pp], b.by_worker.exact[dp][pp]
            hosts = a.host_of((dp, pp)), b.host_of((dp, pp))
            rows.append((dp, pp, *hosts, before, after, after - before))
    header = ("dp", "pp", "host_before", "host_after")
    return Table((*header, "slowdown_before", "slowdown_after", "change"), rows)


def steps_csv(found: Comparison) -> Table:
    """Return the recorded time of every step of both sessions."""
    return Table(
        ("session", "step", "recorded_s"),
        (
            (side.row.number, step, time)
            for side in (found.a, found.b)
            if side.report is not None
            for step, time in zip(
                side.report.steps.analyzed, side.report.step_times.recorded, strict=True
            )
        ),
    )


def causes_csv(found: Comparison) -> Table:
    """Return the share of a step that each cause costs in both sessions."""
    return Table(
        ("cause", "share_before", "share_after", "change"),
        ((one.cause, one.before, one.after, one.change) for one in found.causes),
    )


def arrivals_csv(found: Comparison) -> Table:
    """Return how long others waited for each rank in both sessions."""
    return Table(
        (
            "rank",
            "last_share_before",
            "last_share_after",
            "waited_for_before_s",
            "waited_for_after_s",
            "change_s",
        ),
        (
            (
                one.rank,
                one.last_share_before,
                one.last_share_after,
                one.waited_for_before_s,
                one.waited_for_after_s,
                one.change_s,
            )
            for one in found.arrivals
        ),
    )


def metadata_csv(found: Comparison) -> Table:
    """Return every field of the metadata that differs."""
    return Table(
        ("field", "before", "after"),
        ((one.field, one.before, one.after) for one in found.metadata.changed),
    )


# File name → what makes it of a comparison.
EXPORTS: Final[Mapping[str, Callable[[Comparison], Table]]] = {
    "workers": workers_csv,
    "steps": steps_csv,
    "causes": causes_csv,
    "arrivals": arrivals_csv,
    "metadata": metadata_csv,
}

# File name → what makes it of two times of a job.
OF_TIMES: Final[Mapping[str, Callable[[TimesComparison], Table]]] = {
    "causes": lambda found: Table.of(CauseCount, found.causes),
}

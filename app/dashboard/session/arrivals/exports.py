"""Arrivals and breakdown as CSV."""

from __future__ import annotations

from app.analysis.report.document import Report
from app.dashboard.session.arrivals.view import unsaid_rows
from app.dashboard.ui.csv_text import Table


def arrivals_csv(report: Report) -> Table:
    """Return how late each rank came to each collective, and what others waited there."""
    groups = report.arrivals.groups if report.arrivals else ()
    return Table(
        (
            "group", "stage", "op_type", "order", "collectives", "rank", "host", "late_s",
            "is_last", "last_rank", "last_share", "waited_rank_s", "transfer_s",
        ),
        (
            (
                group.kind, group.stage, one.op, one.order, one.count, rank,
                report.hosts.get(rank), late[place], rank == one.last, one.last, one.last_share,
                one.waited_s, one.transfer_s,
            )
            for group in groups
            for place, one in enumerate(group.collectives)
            for rank, late in zip(group.ranks, group.late_s, strict=True)
        ),
    )  # fmt: skip


def ranks_csv(report: Report) -> Table:
    """Return every rank that meets others: where it runs, and what others wait for it."""
    ranks = report.arrivals.ranks if report.arrivals else ()
    return Table(
        (
            "rank", "host", "gpu", "collectives", "last", "last_share", "waited_for_s",
            "rank_seconds", "waits_s", "missing",
        ),
        (
            (
                one.rank, report.hosts.get(one.rank), report.gpus.get(one.rank), one.collectives,
                one.last, one.last_share, one.waited_for_s, one.rank_seconds, one.waits_s,
                one.missing,
            )
            for one in ranks
        ),
    )  # fmt: skip


def breakdown_csv(report: Report) -> Table:
    """Return what a step of each rank passes with, seconds."""
    found = report.breakdown
    return Table(
        ("rank", "host", "step_s", "computing_s", "communication_s", "data_s", "idle_s"),
        (
            (
                one.rank, report.hosts.get(one.rank), found.step_s, one.computing_s,
                one.communication_s, one.data_s, one.idle_s,
            )
            for one in (found.ranks if found else ())
            if found
        ),
    )  # fmt: skip


def unsaid_csv(report: Report) -> Table:
    """Return what the recording cannot say, and the setting that would record it."""
    rows = unsaid_rows(report)
    return Table(("missing", "setting"), ((row.label, row.value) for row in rows))

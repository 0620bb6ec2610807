"""The tables of hosts as CSV."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from app.dashboard.ui.csv_text import Table
from app.services.hosts.listed import HostSums
from app.services.hosts.one import HostIncident, HostSession, HostView
from app.services.hosts.places import Move

if TYPE_CHECKING:
    from app.services.hosts.listed import Hosts


def alike_csv(found: Hosts) -> Table:
    """Return the hosts that look slow and are not blamed."""
    return Table.of(HostSums, found.look_alikes)


def jobs_csv(view: HostView) -> Table:
    """Return the jobs that a host was in."""
    by_job: dict[str, list[HostSession]] = {}
    for one in view.sessions:
        by_job.setdefault(one.job, []).append(one)
    return Table(
        ("job", "sessions", "slow_sessions", "slowdown_worst", "cost_gpu_hours"),
        (
            (
                *(job, len(own), sum(one.cause is not None for one in own)),
                *(max(one.slowdown for one in own), sum(one.cost for one in own)),
            )
            for job, own in sorted(by_job.items())
        ),
    )


def sessions_csv(view: HostView) -> Table:
    """Return the sessions of a host, the newest first."""
    return Table(
        (
            "received_at",
            "job",
            "session",
            "ranks",
            "workers",
            "slowdown",
            "computing",
            "cause",
            "cost_gpu_hours",
        ),
        (
            (
                one.received_at.isoformat(),
                one.job,
                one.number,
                one.ranks,
                one.workers,
                one.slowdown,
                one.computing,
                one.cause,
                one.cost,
            )
            for one in view.sessions
        ),
    )


def gpus_csv(view: HostView) -> Table:
    """Return each GPU of a host in each session."""
    return Table(
        (
            "received_at",
            "job",
            "session",
            "gpu",
            "uuid",
            "slowdown",
            "computing",
            "named_by_a_cause",
        ),
        (
            (
                one.received_at.isoformat(),
                one.job,
                one.number,
                gpu["gpu"],
                gpu.get("uuid"),
                gpu["slowdown"],
                gpu["computing"],
                str(gpu["slow"]).lower(),
            )
            for one in view.sessions
            for gpu in one.gpus
        ),
    )


def moves_csv(view: HostView) -> Table:
    """Return the GPUs that came from other hosts or went to them."""
    return Table.of(Move, view.moves)


def repairs_csv(view: HostView) -> Table:
    """Return the repair log of a host."""
    return Table(
        ("at", "gpu", "what", "by", "outcome", "slowdown_before", "slowdown_after"),
        (
            (
                one.at.isoformat(),
                one.gpu,
                one.what,
                one.by,
                one.judged.outcome,
                one.judged.before,
                one.judged.after,
            )
            for one in view.repairs
        ),
    )


# File name → what makes it of a host.
EXPORTS: Final[Mapping[str, Callable[[HostView], Table]]] = {
    "sessions": sessions_csv,
    "gpus": gpus_csv,
    "moves": moves_csv,
    "repairs": repairs_csv,
    "jobs": jobs_csv,
    "incidents": lambda view: Table.of(HostIncident, view.incidents),
}

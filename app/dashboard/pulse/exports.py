"""The tables of a job's pulse as files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from app.dashboard.ui.csv_text import Table

if TYPE_CHECKING:
    from app.services.pulse.live import LiveJob


def minutes_csv(live: LiveJob) -> Table:
    """Return the step times of each minute."""
    header = (
        "attempt", "start", "ranks", "steps", "step_median_s", "step_p95_s", "step_worst_s",
        "compute_median_s", "compute_p95_s", "tokens_per_s", "lost_gpu_s",
    )  # fmt: skip
    return Table(header, ([getattr(one, name) for name in header] for one in live.minutes))


def slowest_csv(live: LiveJob) -> Table:
    """Return the ranks that compute longest in each minute, the slowest first."""
    header = ("attempt", "start", "rank", "host", "gpu", "ratio")
    return Table(
        header,
        (
            (one.attempt, one.start, rank.rank, rank.host, rank.gpu, rank.ratio)
            for one in live.minutes
            for rank in one.slowest
        ),
    )


def notices_csv(live: LiveJob) -> Table:
    """Return what was noticed, the latest first."""
    header = (
        "attempt", "number", "kind", "ranks", "hosts", "factor", "from_step", "noticed_step",
        "noticed_at", "cleared_step", "cleared_at", "outcome", "session", "cause", "gpu_hours",
        "sentence",
    )  # fmt: skip
    return Table(
        header,
        (
            [*(getattr(one, name) for name in header[:-1]), one.evidence.told]
            for one in live.notices
        ),
    )


FILES: Final[Mapping[str, Callable[[LiveJob], Table]]] = {
    "minutes": minutes_csv,
    "slowest": slowest_csv,
    "notices": notices_csv,
}

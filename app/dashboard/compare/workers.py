"""What the page of a comparison shows of workers: both heatmaps, and whose slowdown changed."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from app.analysis.report.heatmaps import encode_heatmap
from app.dashboard.ui.format import MINUS, heat_color, times, worker
from app.dashboard.ui.places import host_url

if TYPE_CHECKING:
    from app.services.compare.read import Comparison

# Workers that are listed.
WORKERS: Final = 8
# A worker that changed by less is not worth naming.
WORTH: Final = 0.02
_MANY: Final = 3


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """A worker whose slowdown changed."""

    name: str
    hosts: Sequence[tuple[str, str]]
    before: str
    before_color: str
    after: str
    after_color: str
    change: str


def slowdowns(found: Comparison) -> dict[str, Any]:
    """Return the slowdowns of both as what the script draws."""
    return {"dp": found.a.row.dp, "pp": found.a.row.pp} | {
        name: base64.b64encode(
            encode_heatmap(np.asarray(side.report.by_worker.exact, np.float32))
        ).decode()
        for name, side in (("a", found.a), ("b", found.b))
        if side.report is not None
    }


def moved_workers(found: Comparison) -> list[tuple[int, int]]:
    """Return workers by how much their slowdown changed."""
    a, b = found.a.report, found.b.report
    if a is None or b is None or not found.same_shape:
        return []
    before, after = np.asarray(a.by_worker.exact), np.asarray(b.by_worker.exact)
    order = np.argsort(-np.abs(after - before), axis=None, kind="stable")
    changed = [divmod(int(at), before.shape[1]) for at in order[: WORKERS * _MANY]]
    return [cell for cell in changed if abs(after[cell] - before[cell]) >= WORTH]


def map_title(found: Comparison, moved: Sequence[tuple[int, int]]) -> str:
    """Return the title of the heatmap of differences."""
    if not found.same_shape:
        return "The sessions have other workers: no difference can be drawn"
    if not moved:
        return f"Difference: no worker changed by {WORTH:.2f} or more"
    return f"Difference: {_changed(moved)}"


def _changed(moved: Sequence[tuple[int, int]]) -> str:
    if len(moved) == 1:
        return "one worker changed"
    more = "at least " if len(moved) == WORKERS * _MANY else ""
    return f"{more}{len(moved)} workers changed"


def workers_title(moved: Sequence[tuple[int, int]]) -> str:
    """Return the title of the table of workers."""
    if not moved:
        return f"No worker changed by {WORTH:.2f}"
    return f"Worker {worker(*moved[0])} changed most"


def worker_line(found: Comparison, dp: int, pp: int) -> WorkerLine:
    """Return the line of a worker in both sessions; both have a report."""
    a, b = found.a.report, found.b.report
    assert a is not None  # noqa: S101 - there are none otherwise
    assert b is not None  # noqa: S101 - as above
    before, after = a.by_worker.exact[dp][pp], b.by_worker.exact[dp][pp]
    hosts = [host for host in (a.host_of((dp, pp)), b.host_of((dp, pp))) if host]
    change = after - before
    return WorkerLine(
        name=worker(dp, pp),
        hosts=[(host, host_url(host)) for host in dict.fromkeys(hosts)],
        before=times(before, 3),
        before_color=heat_color(before),
        after=times(after, 3),
        after_color=heat_color(after),
        change=f"{MINUS if change < 0 else '+'}{abs(change):.3f}",
    )

"""Sizes of a job in words, and the job as it runs against its plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.analysis.planning.job.model import Recompute
from app.dashboard.plans.parts import MS
from app.dashboard.ui.format import NBSP, percent, seconds

if TYPE_CHECKING:
    from app.analysis.planning.job.document import JobDocument
    from app.analysis.planning.job.model import Parallelism


@dataclass(frozen=True, slots=True)
class RunningRow:
    """The job as it runs, as it is planned, or between both."""

    way: str
    sizes: str
    iteration: str
    against: str


def sizes_text(sizes: Parallelism) -> str:
    """Return sizes as one writes them: ``dp 4 × pp 8 × tp 8``."""
    return f"dp{NBSP}{sizes.dp} × pp{NBSP}{sizes.pp} × tp{NBSP}{sizes.tp}"


def rest_text(sizes: Parallelism) -> str:
    """Return the other sizes: microbatch, chunks, what is computed again; not what there is not."""
    chunks = f", {sizes.interleave} chunks" if sizes.interleave > 1 else ""
    again = sizes.recompute
    recompute = "" if again is Recompute.NONE else f", recompute {again.value}"
    return f"microbatch {sizes.microbatch}{chunks}{recompute}"


def sizes_and_rest(sizes: Parallelism) -> str:
    """Return all sizes."""
    return f"{sizes_text(sizes)}, {rest_text(sizes)}"


def against_text(relative: float) -> str:
    """Return how much longer or shorter something takes than something else, with its sign."""
    return ("+" if relative > 1 else "") + percent(relative - 1)


def running_title(document: JobDocument) -> str:
    """Return what the plan saves of the job as it runs; empty where that is not said."""
    runs = document.as_it_runs
    if runs is None:
        return ""
    if runs.relative <= 1:
        return "No plan is faster than the job as it runs"
    return f"The best plan takes {percent(1 - 1 / runs.relative)} less than the job as it runs"


def running_rows(document: JobDocument) -> tuple[RunningRow, ...]:
    """Return the job as it runs, with its sizes and the best cut, and as it is planned."""
    runs, best_ms = document.as_it_runs, document.iteration_time_ms.simulated
    if runs is None:
        return ()
    same = document.comparison.get("same_sizes")
    known = (("dp", runs.dp), ("pp", runs.pp), ("tp", runs.tp))
    sizes = " × ".join(f"{name}{NBSP}{size}" for name, size in known if size is not None)
    rows = [RunningRow("As it runs, measured", sizes, seconds(runs.iteration_time_ms * MS), "")]
    if same is not None and same.parallelism is not None and same.iteration_time_ms is not None:
        ms = same.iteration_time_ms.simulated
        rows.append(
            RunningRow(
                "The same sizes, the best cut",
                sizes_and_rest(same.parallelism),
                seconds(ms * MS),
                against_text(ms / runs.iteration_time_ms),
            )
        )
    elif same is not None:
        rows.append(RunningRow("The same sizes", "do not fit by what is predicted", "", ""))
    own = sizes_and_rest(document.parallelism)
    against = against_text(best_ms / runs.iteration_time_ms)
    rows.append(RunningRow("Best as measured", own, seconds(best_ms * MS), against))
    return tuple(rows)

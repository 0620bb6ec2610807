"""The data behind each figure as CSV: what "Copy" and "CSV" give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from app.analysis.report.document import Report
from app.dashboard.look.csv_text import Cell, csv_text

if TYPE_CHECKING:
    from numpy.typing import NDArray


def workers_csv(report: Report, step_map: NDArray[Any] | None = None) -> str:
    """Return every worker: where it runs, its slowdown, and its times against its peers'.

    Parameters
    ----------
    report : Report
    step_map : float array, shape (dp, pp), optional
        Slowdowns of one step, which then stand in place of the mean over all steps.
    """
    by_worker, ranks = report.by_worker, report.workers.rank
    hosts, gpus = report.hosts, report.gpus
    rows: list[Sequence[Cell]] = []
    for dp, stages in enumerate(ranks):
        for pp, rank in enumerate(stages):
            slowdown = by_worker.exact[dp][pp] if step_map is None else float(step_map[dp, pp])
            rows.append(
                (
                    dp,
                    pp,
                    rank,
                    hosts.get(rank),
                    gpus.get(rank),
                    slowdown,
                    by_worker.approximate[dp][pp],
                    by_worker.forward_ratio[dp][pp],
                    by_worker.backward_ratio[dp][pp],
                )
            )
    return csv_text(
        (
            "dp",
            "pp",
            "rank",
            "host",
            "gpu",
            "slowdown",
            "slowdown_approximate_mean",
            "forward_ratio",
            "backward_ratio",
        ),
        rows,
    )


def steps_csv(report: Report) -> str:
    """Return every analyzed step: its times in seconds and its slowdowns."""
    times = report.step_times
    return csv_text(
        ("step", "recorded_s", "simulated_s", "ideal_s", "slowdown", "launch_slowdown"),
        zip(
            report.steps.analyzed,
            times.recorded,
            times.simulated,
            times.ideal,
            report.step_slowdown,
            report.per_step.launch_slowdown,
            strict=True,
        ),
    )


def optypes_csv(report: Report) -> str:
    """Return every operation type: its slowdown, its waste and its launch delays."""
    return csv_text(
        ("op_type", "slowdown", "waste", "launch_delay_share"),
        (
            (name, value, report.waste_by_optype[name], report.launch_by_optype[name])
            for name, value in report.by_optype.items()
        ),
    )


def microbatches_csv(report: Report) -> str:
    """Return the sampled microbatches of the forward–backward scatter."""
    sample = report.fb_correlation.sample
    return csv_text(
        ("forward_s", "backward_s"), zip(sample.forward_s, sample.backward_s, strict=True)
    )


# File name → what makes it of a report; `workers` also knows single steps.
EXPORTS: Final[Mapping[str, Callable[[Report], str]]] = {
    "workers": workers_csv,
    "steps": steps_csv,
    "optypes": optypes_csv,
    "microbatches": microbatches_csv,
}

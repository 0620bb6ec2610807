"""CSV tables with the data of each figure on a session's page, for "Copy" and "CSV"."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from numpy.typing import NDArray

from app.analysis.budget.split import Part
from app.analysis.mitigation.fixes import WithheldTemplate
from app.analysis.report.document import Recommendation, Report
from app.analysis.trace.metadata import Unmapped, unmapped_of
from app.sessions.pages.arrivals import arrivals_csv, breakdown_csv, ranks_csv, unsaid_csv
from app.sessions.pages.facts import fault_rows
from app.sessions.pages.tables import coverage_rows
from app.sessions.read import SessionView
from app.web.parts import Row
from app.web.tables import Table


def workers_csv(report: Report, step_map: NDArray[Any] | None = None) -> Table:
    """Return each worker's host, GPU, slowdown S_w, and ratios of its times to its peers' times.

    Parameters
    ----------
    step_map : float array, shape (dp, pp), optional
        Slowdowns of one step instead of the mean over all steps.
    """
    by_worker, slowdowns = report.by_worker, report.by_worker.exact
    if step_map is not None:
        slowdowns = step_map.tolist()
    return Table(
        (
            "dp", "pp", "rank", "host", "gpu", "slowdown", "slowdown_approximate_mean",
            "forward_ratio", "backward_ratio",
        ),
        (
            (
                dp, pp, rank, report.hosts.get(rank), report.gpus.get(rank), slowdowns[dp][pp],
                by_worker.approximate[dp][pp], by_worker.forward_ratio[dp][pp],
                by_worker.backward_ratio[dp][pp],
            )
            for dp, stages in enumerate(report.workers.rank)
            for pp, rank in enumerate(stages)
        ),
    )  # fmt: skip


def steps_csv(report: Report) -> Table:
    """Return each analyzed step's times in seconds and its slowdowns."""
    times = report.step_times
    return Table(
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


def budget_csv(report: Report) -> Table:
    """Return the time budget of the job, of each worker and of each step, as shares of `wall_s`."""
    budget = report.budget
    rows: list[Sequence[object]] = []
    if budget is not None:
        rows.append((None, None, None, budget.wall_s, *(budget.shares.of(part) for part in Part)))
        rows += (
            (dp, pp, None, budget.wall_s, *(budget.by_worker[part][dp][pp] for part in Part))
            for dp in range(report.sizes.dp)
            for pp in range(report.sizes.pp)
        )
        rows += (
            (None, None, step, wall_s, *(budget.by_step[part][index] for part in Part))
            for index, (step, wall_s) in enumerate(
                zip(report.steps.analyzed, budget.step_wall_s, strict=True)
            )
        )
    return Table(("dp", "pp", "step", "wall_s", *(part.value for part in Part)), rows)


def optypes_csv(report: Report) -> Table:
    """Return each operation type's slowdown, waste and launch delays."""
    return Table(
        ("op_type", "slowdown", "waste", "launch_delay_share"),
        (
            (name, value, report.waste_by_optype[name], report.launch_by_optype[name])
            for name, value in report.by_optype.items()
        ),
    )


def microbatches_csv(report: Report) -> Table:
    """Return the forward and backward times of the sampled microbatches in the scatter plot."""
    sample = report.fb_correlation.sample
    return Table(("forward_s", "backward_s"), zip(sample.forward_s, sample.backward_s, strict=True))


def causes_csv(report: Report) -> Table:
    """Return each cause with its evidence, including ruled out causes and those not judged."""
    diagnosis = report.diagnosis
    return Table(
        ("cause", "found", "contribution", "cost_s", "confidence", "evidence"),
        (
            *(
                (cause.cause, "yes", cause.contribution, cause.cost_s, cause.confidence,
                 " ".join(cause.evidence))
                for cause in report.causes
            ),
            *((cause, "no", None, None, None, None) for cause in diagnosis.ruled_out),
            *(
                (unjudged.cause, "cannot say", None, None, None, unjudged.reason)
                for unjudged in diagnosis.cannot_judge
            ),
        ),
    )  # fmt: skip


def fixes_csv(report: Report) -> Table:
    """Return the recommended fixes with their predicted gains."""
    names = ("action", "title", "predicted_step_time", "predicted_gain", "at_most", "cause")
    return Table.of(Recommendation, report.recommendations, *names, "detail")


def recovered_csv(report: Report) -> Table:
    """Return the recoverable shares of the lost time (What-if paper, M_W and M_S), and k50."""
    m_w, m_s = report.m_w, report.m_s
    published = m_w.published or m_w
    none = (None, None)
    return Table(
        ("what", "workers", "recovered", "recovered_low", "recovered_high", "kept_alone"),
        (
            ("m_w", len(m_w.workers), m_w.rem, *(m_w.ci95 or none), m_w.add),
            (
                *("m_w_published", len(published.workers), published.rem),
                *(published.ci95 or none),
                published.add,
            ),
            ("m_s", None, m_s.rem, *(m_s.ci95 or none), m_s.add),
            ("k50", report.k50, None, None, None, None),
        ),
    )


def template_csv(report: Report) -> Table:
    """Return the stages of the current and the recommended template; no rows without a template."""
    template = report.template
    sides: tuple[tuple[str, Sequence[int], Sequence[int], Sequence[float]], ...] = ()
    if template is not None and not isinstance(template, WithheldTemplate):
        layers, stage_ms = template.layers, template.stage_ms
        sides = (
            ("now", range(len(layers.today)), layers.today, stage_ms.today),
            ("recommended", template.worker_of_stage, layers.template, stage_ms.template),
        )
    return Table(
        ("division", "stage", "workers_of_stage", "layers", "microbatch_ms"),
        (
            (word, stage, *cells)
            for word, *columns in sides
            for stage, cells in enumerate(zip(*columns, strict=True))
        ),
    )  # fmt: skip


def tensor_ranks_csv(report: Report) -> Table:
    """Return the ranks of the tensor-parallel groups with advised work control."""
    groups = report.tensor.groups if report.tensor else ()
    return Table(
        ("dp", "pp", "rank", "host", "now_s", "predicted_s", "resized", "migrated", "received"),
        (
            (
                *group.worker, group.ranks[share.rank], report.hosts.get(group.ranks[share.rank]),
                share.time_s, share.predicted_time_s, share.resized_columns,
                share.migrated_columns, share.received_columns,
            )
            for group in groups
            for share in group.advice.best.ranks
        ),
    )  # fmt: skip


def tensor_methods_csv(report: Report) -> Table:
    """Return the methods of work control for the tensor-parallel groups of `tensor_ranks_csv`."""
    groups = report.tensor.groups if report.tensor else ()
    return Table(
        ("dp", "pp", "method", "criterion", "predicted_s", "gamma", "loss_risk", "within_budget"),
        (
            (
                *group.worker, item.method, item.criterion, item.predicted_time_s, item.gamma,
                item.loss_risk, item.within_budget,
            )
            for group in groups
            for item in group.advice.alternatives
        ),
    )  # fmt: skip


def coverage_csv(report: Report) -> Table:
    """Return the coverage of the report, with the rows of the page's table."""
    return Table.of(Row, coverage_rows(report))


# CSV tables of a report, by file name; `workers` is also available for single steps.
EXPORTS: Final[Mapping[str, Callable[[Report], Table]]] = {
    "workers": workers_csv,
    "steps": steps_csv,
    "budget": budget_csv,
    "arrivals": arrivals_csv,
    "arrival-ranks": ranks_csv,
    "breakdown": breakdown_csv,
    "unsaid": unsaid_csv,
    "optypes": optypes_csv,
    "microbatches": microbatches_csv,
    "causes": causes_csv,
    "fixes": fixes_csv,
    "recovered": recovered_csv,
    "template": template_csv,
    "tensor-ranks": tensor_ranks_csv,
    "tensor-methods": tensor_methods_csv,
    "coverage": coverage_csv,
}

# CSV tables of a session that need no report, by file name.
WITHOUT_REPORT: Final[Mapping[str, Callable[[SessionView], Table]]] = {
    "faults": lambda view: Table.of(Row, fault_rows(view)),
    "unmapped": lambda view: Table.of(Unmapped, unmapped_of(view.meta)),
}

"""The report of a session, schema ``paceline.report/1``: what pages, API and command line show."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.diagnosis.diagnose import Diagnosis, diagnose
from app.analysis.diagnosis.finding import Cause
from app.analysis.diagnosis.headline import headline
from app.analysis.diagnosis.places import JobFacts, Worker
from app.analysis.diagnosis.verdict import verdict
from app.analysis.mitigation.fix import Fix
from app.analysis.mitigation.predictions import predict_fixes
from app.analysis.mitigation.template import recommend_template
from app.analysis.mitigation.tensor.recorded import advise_session, fix_of
from app.analysis.replay.adaptations.evidence import SENTENCES, Name, Sign
from app.analysis.replay.adaptations.hidden_collectives import find_hidden_collectives
from app.analysis.replay.clocks.agreement import clocks_apart_ns
from app.analysis.replay.confidence import Interval, Intervals, bootstrap
from app.analysis.replay.fidelity import (
    DISCREPANCY_LIMIT,
    Delaying,
    distrust,
    hides_collectives,
    late_launches,
)
from app.analysis.replay.layout.dense import MAX_NAMED_FAULTS, FloatArray
from app.analysis.replay.metrics import (
    Contribution,
    Metrics,
    measure,
    rank_workers,
)
from app.analysis.replay.microbatches import ForwardBackward, compute_ratios, forward_backward
from app.analysis.replay.session import Replayed, prepare_replay
from app.analysis.report.coverage import (
    Clocks,
    Coverage,
    Fidelity,
    LateOpType,
    LateWorker,
    MadeAdaptation,
    Recreated,
)
from app.analysis.report.document import (
    SECONDS_AN_HOUR,
    JobSizes,
    Report,
    Steps,
    Workers,
)
from app.analysis.report.findings import (
    DiagnosisSummary,
    NamedCause,
    Recommendation,
    UnjudgedCause,
)
from app.analysis.report.measures import (
    ByWorker,
    Correlation,
    CorrelationSample,
    PerStep,
    Recovery,
    StepTimes,
    WorkersRecovery,
    WorstWorker,
)
from app.analysis.trace.model import REPLAYED_OP_TYPES, Trace
from app.analysis.trace.unmapped import said
from app.analysis.wording import percent
from app.errors import Fault, UnanalyzableError

# Fewer steps say little about the job: medians and the bootstrap need a population.
MIN_STEPS: Final = 5
# Points of the forward-backward scatter that travel with the report.
SAMPLE_POINTS: Final = 700
PIECE_ROWS: Final = 1 << 17
# Workers whose slowdown gets an interval.
WORST_WORKERS: Final = 10
NS_A_SECOND: Final = 1e9
# Clocks that are further apart than this share of a step are warned of.
CLOCK_WARNING: Final = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class Analysis:
    """What the analysis of a session gives.

    Parameters
    ----------
    report : Report
        Without NaN or infinities. `job` and `session` are None; whoever knows them fills them in.
    heatmaps : float32 array, shape (steps, dp, pp)
        Slowdown of each step if only this worker kept its recorded durations (exact S_w), the
        steps in the order of ``report.steps.analyzed``.
    """

    report: Report
    heatmaps: NDArray[np.float32]


def analyze(trace: Trace, without: Collection[Name] = ()) -> Analysis:
    """Replay a session with and without stragglers and report what that says.

    Parameters
    ----------
    trace : Trace
    without : collection of Name
        Adaptations of the dependency model that are switched off.

    Raises
    ------
    UnanalyzableError
        No verdict can come from the trace: ``trace.rank_missing``, ``trace.no_complete_step``,
        ``trace.too_few_steps``, ``trace.transfers_unmatched``, ``trace.dependency_cycle``…
    """
    replayed = prepare_replay(trace, without)
    _require_steps(replayed)
    metrics = measure(replayed)
    ideal = metrics.ideal_s[:, None, None]
    return Analysis(
        report=_report(trace, replayed, metrics),
        heatmaps=(metrics.by_worker / ideal).astype(np.float32),
    )


def _require_steps(replayed: Replayed) -> None:
    complete = len(replayed.steps)
    if complete >= MIN_STEPS:
        return
    message = f"{complete} complete steps, at least {MIN_STEPS} are needed"
    faults = [Fault("too_few_steps", message, column="step")]
    faults += [
        Fault("dropped_step", f"Step {item.step}: {item.reason}") for item in replayed.dropped
    ]
    raise UnanalyzableError(
        message, code="trace.too_few_steps", faults=tuple(faults[:MAX_NAMED_FAULTS])
    )


def _report(trace: Trace, replayed: Replayed, metrics: Metrics) -> Report:
    sizes, slowdown = trace.meta.sizes, metrics.slowdown
    waste = 1 - 1 / slowdown
    by_dp, by_pp = metrics.relative(metrics.by_dp), metrics.relative(metrics.by_pp)
    by_optype = {name: float(metrics.relative(s)) for name, s in metrics.by_optype.items()}
    worst = rank_workers(metrics.by_worker.mean(axis=0))[:WORST_WORKERS]
    intervals = bootstrap(metrics, worst)
    hidden = find_hidden_collectives(replayed.layout)
    diagnosis = diagnose(trace, replayed, metrics)
    fidelity = _fidelity(replayed, metrics, hidden, diagnosis)
    trusted = fidelity.verdict
    causes = () if hidden is not None else diagnosis.causes_within(DISCREPANCY_LIMIT)
    shown = headline(metrics, intervals.slowdown, diagnosis, causes)
    simulated_s = metrics.simulated_step_s
    tensor = advise_session(trace, replayed, causes, simulated_s * diagnosis.late)
    ranks = _by_cell(replayed.layout.ranks)
    by_worker = _by_worker(replayed, metrics, worst, intervals)
    job = JobFacts(trace.meta.hosts, ranks, by_optype)
    said = verdict(job, metrics, causes, shown, DISCREPANCY_LIMIT, hidden=hidden is not None)
    fixes: Sequence[Fix] = ()
    # Nothing is advised about a job that nobody need act on.
    if said.level != "ok":
        shed = None if tensor is None else fix_of(tensor)
        fixes = predict_fixes(
            trace,
            replayed,
            metrics,
            diagnosis,
            causes,
            headline=shown,
            trusted=trusted,
            others=() if shed is None else (shed,),
        )
    return Report(
        trial_name=trace.meta.trial_name,
        sizes=JobSizes(
            dp=sizes.dp, pp=sizes.pp, tp=sizes.tp, cp=sizes.cp, vpp=sizes.vpp, world=sizes.world
        ),
        hosts=dict(trace.meta.hosts),
        gpus=dict(trace.meta.gpus),
        workers=Workers(ranks),
        steps=Steps(
            analyzed=tuple(replayed.steps.tolist()),
            dropped=replayed.dropped,
        ),
        coverage=_coverage(trace, replayed, metrics),
        clocks=_clocks(trace, replayed, metrics),
        fidelity=fidelity,
        headline=shown,
        slowdown=slowdown,
        slowdown_ci95=intervals.slowdown,
        waste=waste,
        waste_ci95=intervals.waste,
        gpu_hours_lost=sizes.world
        * float((metrics.simulated_s - metrics.ideal_s).sum())
        / SECONDS_AN_HOUR,
        gpu_hours_lost_per_hour=sizes.world * waste,
        launch_slowdown=float(metrics.recorded_s.mean()) / simulated_s,
        launch_by_optype=metrics.launch_by_optype,
        k50=metrics.k50,
        step_times=StepTimes(
            recorded=_numbers(metrics.recorded_s),
            simulated=_numbers(metrics.simulated_s),
            ideal=_numbers(metrics.ideal_s),
        ),
        step_slowdown=_numbers(metrics.simulated_s / metrics.ideal_s),
        by_optype=by_optype,
        waste_by_optype={name: 1 - 1 / value for name, value in by_optype.items()},
        by_dp=_numbers(by_dp),
        by_pp=_numbers(by_pp),
        per_step=_per_step(metrics),
        by_worker=by_worker,
        m_w=WorkersRecovery(
            *_recovery(metrics, metrics.worst_workers, metrics.m_w, intervals.m_w),
            workers=metrics.worst,
        ),
        m_s=Recovery(*_recovery(metrics, metrics.last_stage, metrics.m_s, intervals.m_s)),
        fb_correlation=_correlation(forward_backward(replayed)),
        causes=tuple(_cause(cause) for cause in causes),
        diagnosis=DiagnosisSummary(
            ruled_out=diagnosis.ruled_out,
            cannot_judge=tuple(
                UnjudgedCause(cause, reason) for cause, reason in diagnosis.unjudged.items()
            ),
            lost_s=diagnosis.lost_s,
            slowdown=diagnosis.slowdown,
        ),
        recommendations=tuple(
            Recommendation(
                fix.action,
                fix.title,
                fix.step_time_s,
                fix.gain,
                fix.detail,
                fix.cause,
                fix.at_most,
                fix.division,
                fix.collections,
                fix.balancing,
            )
            for fix in fixes
        ),
        template=recommend_template(trace, replayed, causes, fixes, simulated_s)
        if said.level == "slow"
        else None,
        tensor=tensor,
        verdict=said,
    )


def _fidelity(
    replayed: Replayed, metrics: Metrics, hidden: Sign | None, diagnosis: Diagnosis
) -> Fidelity:
    near = metrics.discrepancy <= DISCREPANCY_LIMIT
    # replayed one at a time, and only where the verdict is withheld
    late = [] if near else late_launches(replayed, metrics)
    reason = None
    if hidden is not None:
        reason = hides_collectives(hidden)
    elif not near:
        titles = tuple(title_of(name) for name in diagnosis.delaying)
        delaying = Delaying(titles, diagnosis.discrepancy) if titles else None
        reason = distrust(replayed, metrics, late, DISCREPANCY_LIMIT, delaying)
    return Fidelity(
        discrepancy=metrics.discrepancy,
        limit=DISCREPANCY_LIMIT,
        verdict=near and hidden is None,
        reason=reason,
        adaptations=tuple(
            MadeAdaptation(
                adaptation=item.name.value,
                sentence=SENTENCES[item.name],
                where=item.sign.where,
                confidence=item.sign.confidence,
                discrepancy_before=item.before,
                discrepancy_after=item.after,
            )
            for item in replayed.adaptations
        ),
        late_launches=tuple(
            LateOpType(
                item.op_type,
                item.share,
                tuple(LateWorker(worker, share) for worker, share in item.workers),
            )
            for item in late
        ),
    )


def _per_step(metrics: Metrics) -> PerStep:
    ideal_s = metrics.ideal_s[:, None]
    return PerStep(
        by_optype={
            name: _numbers(times / metrics.ideal_s) for name, times in metrics.by_optype.items()
        },
        by_dp=_by_cell((metrics.by_dp / ideal_s).T),
        by_pp=_by_cell((metrics.by_pp / ideal_s).T),
        launch_slowdown=_numbers(metrics.recorded_s / metrics.simulated_s),
    )


def _by_worker(
    replayed: Replayed, metrics: Metrics, worst: Sequence[Worker], intervals: Intervals
) -> ByWorker:
    exact = metrics.relative(metrics.by_worker)
    by_dp, by_pp = metrics.relative(metrics.by_dp), metrics.relative(metrics.by_pp)
    forward_ratio, backward_ratio = compute_ratios(replayed)
    return ByWorker(
        exact=_by_cell(exact),
        approximate=_by_cell(np.minimum(by_dp[:, None], by_pp[None, :])),
        forward_ratio=_finite(forward_ratio),
        backward_ratio=_finite(backward_ratio),
        worst=tuple(
            WorstWorker(worker, float(exact[worker]), interval)
            for worker, interval in zip(worst, intervals.workers, strict=True)
        ),
    )


def _correlation(found: ForwardBackward) -> Correlation:
    every = max(1, math.ceil(len(found.forward_s) / SAMPLE_POINTS))
    return Correlation(
        pearson=found.pearson,
        stage=found.stage,
        points=len(found.forward_s),
        sample=CorrelationSample(
            forward_s=_numbers(found.forward_s[::every]),
            backward_s=_numbers(found.backward_s[::every]),
        ),
    )


def _cause(cause: Cause) -> NamedCause:
    return NamedCause(
        cause=cause.cause,
        contribution=cause.contribution,
        cost_s=cause.cost_s,
        confidence=cause.confidence,
        evidence=tuple(line.text for line in cause.evidence),
        views=tuple(line.view for line in cause.evidence),
        where=cause.where,
        figure=cause.figure,
        runner_up=cause.runner_up,
    )


def _clocks(trace: Trace, replayed: Replayed, metrics: Metrics) -> Clocks:
    clocks = replayed.clocks
    step_s = float(metrics.recorded_s.mean())
    largest_s = float(np.abs(clocks.offsets_ns).max()) / NS_A_SECOND
    residual_s = float(clocks.residual_ns.max()) / NS_A_SECOND
    warnings = []
    if largest_s > CLOCK_WARNING * step_s and (
        clocks.unconnected or _clocks_differ(replayed, clocks.offsets_ns)
    ):
        warnings.append(
            f"Clocks are up to {largest_s * 1e3:.1f} ms apart, {percent(largest_s / step_s)} of a "
            "step: synchronize the hosts"
        )
    if residual_s > CLOCK_WARNING * step_s and not clocks.unconnected and _clocks_differ(replayed):
        warnings.append(
            f"Even aligned, ends that belong together are up to {residual_s * 1e3:.1f} ms apart, "
            f"{percent(residual_s / step_s)} of a step: clocks move between steps, and S may be off"
            + (". Absolute times would tell by how much" if trace.step_relative else "")
        )
    if clocks.unconnected:
        warnings.append(
            f"No recorded communication connects {len(clocks.unconnected)} groups of ranks: "
            "their clocks are compared by the boundaries of steps"
        )
    return Clocks(
        aligned=clocks.aligned,
        absolute=not trace.step_relative,
        offsets_ns=_by_cell(clocks.offsets_ns),
        residual_ns=_by_cell(clocks.residual_ns),
        drift_ppm=None if clocks.drift_ppm is None else _by_cell(clocks.drift_ppm),
        unconnected=clocks.unconnected,
        warnings=tuple(warnings),
    )


def _clocks_differ(replayed: Replayed, offsets_ns: FloatArray | None = None) -> bool:
    """Return whether clocks do, and not only ends of some type are taken at another moment."""
    layout = replayed.layout
    step_ns = float((layout.start_ns + layout.duration_ns).max(axis=(0, 2)).mean())
    return clocks_apart_ns(layout, replayed.graph, offsets_ns) > CLOCK_WARNING * step_ns


def _coverage(trace: Trace, replayed: Replayed, metrics: Metrics) -> Coverage:
    recreated = replayed.recreated
    counts = _count_by_type(trace)
    known = len(REPLAYED_OP_TYPES)
    return Coverage(
        ranks_expected=trace.meta.sizes.workers,
        ranks_present=int(replayed.layout.ranks.size),
        operations=len(trace),
        operations_replayed=sum(group.layout.start_ns.size for group in replayed.groups),
        recreated=Recreated(
            operations=recreated.total,
            by_optype=recreated.by_optype,
            by_worker=_by_cell(recreated.by_worker),
        ),
        unknown_op_types={
            name: count
            # by name: their codes follow the order in which they came
            for name, count in sorted(zip(trace.op_names[known:], counts[known:], strict=True))
            if count
        },
        unanswered={name: counts[REPLAYED_OP_TYPES.index(name)] for name in replayed.unanswered},
        absent_op_types=tuple(
            name for name, count in zip(REPLAYED_OP_TYPES, counts, strict=False) if not count
        ),
        clamped_transfers=replayed.clamped,
        clamped_launch_delays=metrics.clamped_delays,
        unmapped=said(trace.meta.extra),
    )


def _count_by_type(trace: Trace) -> list[int]:
    """Count operations of each type, in pieces: `bincount` widens all that it is given."""
    counts = np.zeros(len(trace.op_names), dtype=np.int64)
    for first in range(0, len(trace), PIECE_ROWS):
        counts += np.bincount(trace.op[first : first + PIECE_ROWS], minlength=len(counts))
    return counts.tolist()


def _recovery(
    metrics: Metrics,
    contribution: Contribution,
    removal: float | None,
    interval: Interval | None,
) -> tuple[float | None, float | None, Interval | None, float, float]:
    """Return both attributions; with one stage there is no last one to blame (section 5.2)."""
    addition = metrics.addition(contribution) if removal != 0.0 else 0.0
    removed_s, kept_s = float(contribution.removed_s.mean()), float(contribution.kept_s.mean())
    return removal, addition, interval, removed_s, kept_s


def _numbers(values: FloatArray) -> tuple[float, ...]:
    return tuple(values.tolist())


def _by_cell(values: NDArray[Any]) -> tuple[tuple[Any, ...], ...]:
    return tuple(map(tuple, values.tolist()))


def _finite(values: FloatArray) -> tuple[tuple[float | None, ...], ...]:
    return tuple(tuple(x if math.isfinite(x) else None for x in row) for row in values.tolist())

"""Analysis of a trace into the report of a session, schema ``paceline.report/1``."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from app.analysis.arrivals.build import arrivals_of
from app.analysis.budget.split import Budget, budget_of, split
from app.analysis.diagnosis.diagnose import causes_without_replay, diagnose
from app.analysis.diagnosis.earlier_sessions import EarlierSession, computing_of
from app.analysis.diagnosis.finding import UNKNOWN
from app.analysis.diagnosis.headline import headline
from app.analysis.diagnosis.locations import JobFacts, Worker
from app.analysis.diagnosis.named_causes import all_causes
from app.analysis.diagnosis.observation import Observation
from app.analysis.diagnosis.recorded_lengths import slow_together
from app.analysis.diagnosis.verdict import verdict
from app.analysis.mitigation.fixes import Fix
from app.analysis.mitigation.tensor.session_advice import advise_session, fix_of
from app.analysis.quantities import FloatArray, SingleArray
from app.analysis.replay.adaptations.kind import Name
from app.analysis.replay.confidence import Interval, Intervals, bootstrap
from app.analysis.replay.fidelity import DISCREPANCY_LIMIT
from app.analysis.replay.metrics import (
    Contribution,
    Metrics,
    compute_ratios,
    forward_backward,
    measure,
)
from app.analysis.replay.no_verdict import faster_with_stragglers, unseen_of
from app.analysis.replay.robust_statistics import mean
from app.analysis.replay.session import Replayed
from app.analysis.report.coverage import Coverage
from app.analysis.report.document import (
    SECONDS_AN_HOUR,
    ByWorker,
    Correlation,
    CorrelationSample,
    DiagnosisSummary,
    JobSizes,
    NamedCause,
    PerStep,
    RankedRecovery,
    Recommendation,
    Recovery,
    Report,
    Steps,
    StepTimes,
    UnjudgedCause,
    Workers,
    WorkersRecovery,
    WorstWorker,
)
from app.analysis.report.trust import (
    by_cell,
    clocks_of,
    coverage_of,
    fidelity_of,
    missing_in_words,
    missing_of,
)
from app.analysis.report.unreplayed import Prepared, replay_or_steps, without_slowdown
from app.analysis.trace.model import Trace

SAMPLE_POINTS: Final = 700  # points of the forward-backward scatter plot in a report
WORST_WORKERS: Final = 10  # workers whose slowdown gets an interval


@dataclass(frozen=True, slots=True, eq=False)
class Analysis:
    """Report and heatmaps of a session."""

    # Contains no NaN or infinity; `job` and `session` are None until the caller sets them.
    report: Report
    # shape (steps, dp, pp): exact S_w, the slowdown of each step of ``report.steps.analyzed`` if
    # only this worker kept its recorded durations
    heatmaps: SingleArray


def analyze(
    trace: Trace, without: Collection[Name] = (), earlier: Sequence[EarlierSession] = ()
) -> Analysis:
    """Replay a session with and without stragglers, and return its report and heatmaps.

    The report of a session that cannot be replayed has only arrivals and breakdown; see
    `app.analysis.report.unreplayed`.

    Parameters
    ----------
    without : collection of Name
        Adaptations of the dependency model to switch off.
    earlier : sequence of EarlierSession
        Computing times of the job's earlier sessions, the baseline of this one.

    Raises
    ------
    UnanalyzableError
        No report can be made: ``trace.no_complete_step``; or ``trace.transfers_unmatched`` or
        ``trace.dependency_cycle`` of a trace without collectives…
    """
    prepared = replay_or_steps(trace, without)
    replayed = prepared.replayed
    metrics = measure(replayed)
    ideal = metrics.ideal_s[:, None, None]
    # Steps with an impossible duration are excluded, unless no other steps remain.
    odd = {duration.step for duration in replayed.impossible}
    steps: list[int] = replayed.steps.tolist()
    met = prepared.met or arrivals_of(trace, [step for step in steps if step not in odd] or steps)
    report = replace(
        _report(prepared, metrics, earlier, coverage_of(trace, replayed, metrics)),
        arrivals=met.arrivals,
        breakdown=met.breakdown,
    )
    return Analysis(
        report=report if prepared.unseen is None else without_slowdown(report),
        heatmaps=(metrics.by_worker / ideal).astype(np.float32),
    )


def _report(
    prepared: Prepared, metrics: Metrics, earlier: Sequence[EarlierSession], coverage: Coverage
) -> Report:
    trace, replayed, unseen = prepared.trace, prepared.replayed, prepared.unseen
    meta, sizes, slowdown = trace.meta, trace.meta.sizes, metrics.slowdown
    waste = 1 - 1 / slowdown
    by_dp, by_pp = metrics.relative(metrics.by_dp), metrics.relative(metrics.by_pp)
    by_optype = {name: float(metrics.relative(s)) for name, s in metrics.by_optype.items()}
    worst = metrics.ranked[:WORST_WORKERS]
    intervals = bootstrap(metrics, worst)
    unreplayed = unseen is not None
    unseen = unseen or unseen_of(replayed)
    observation = Observation(trace, replayed.main)
    diagnosis = diagnose(observation, replayed, metrics, earlier)
    fidelity = fidelity_of(replayed, metrics, unseen, diagnosis)
    trusted = fidelity.verdict
    causes = diagnosis.causes_within(DISCREPANCY_LIMIT)
    if unseen is not None:
        causes = ()
    elif not trusted and all(cause.cause == UNKNOWN for cause in causes):
        causes = causes_without_replay(observation, metrics, earlier) or causes
    shown = headline(metrics, intervals.slowdown, diagnosis, causes)
    faster = faster_with_stragglers(replayed, shown.slowdown) if trusted else None
    if faster is not None:
        unseen, causes, trusted = faster, (), False
        fidelity = fidelity_of(replayed, metrics, unseen, diagnosis)
        shown = headline(metrics, intervals.slowdown, diagnosis, causes)
    simulated_s = metrics.simulated_step_s
    tensor = advise_session(trace, replayed, causes, simulated_s * diagnosis.late)
    ranks = by_cell(replayed.layout.ranks)
    job = JobFacts(
        meta.hosts,
        ranks,
        meta.gpus,
        sizes.tp * sizes.cp,
        meta.whereabouts.guessed_hosts,
        by_optype=by_optype,
        absent=replayed.absent,
    )
    # Recordings of different sessions have no common clock, so gaps and budget are unknown.
    withheld, timed = (None, True) if unseen is None else (unseen.verdict, unseen.timed)
    between = diagnosis.between if timed else ()
    budget = _budget(observation, replayed, metrics) if timed else None
    # If missing ranks prevent the replay, `withheld` already states this reason.
    step_s = metrics.recorded_step_s
    missing = None if unreplayed else missing_in_words(missing_of(replayed), step_s)
    sentence = verdict(
        job,
        metrics,
        causes,
        shown,
        DISCREPANCY_LIMIT,
        shares=None if budget is None else budget.shares,
        between=between,
        turn_s=diagnosis.turn_s,
        withheld=withheld,
        missing=missing,
    )
    fixes: Sequence[Fix] = ()
    # A job without stragglers gets no recommendations.
    if sentence.level != "ok" or not trusted:
        # Imported here, so that reports of healthy jobs do not load the planners.
        from app.analysis.mitigation.predictions import predict_fixes  # noqa: PLC0415

        shed = None if tensor is None else fix_of(tensor)
        fixes = predict_fixes(
            observation,
            replayed,
            metrics,
            diagnosis,
            causes,
            headline=shown,
            trusted=trusted,
            others=() if shed is None else (shed,),
        )
    every = all_causes(causes, between, diagnosis.lost_s)
    if between:
        from app.analysis.mitigation.predictions import without_standstills  # noqa: PLC0415 - as above

        now_s = metrics.simulated_step_s * diagnosis.late
        fixes = without_standstills(fixes, every, observation.hosts, now_s, diagnosis.turn_s)
    template = None
    if sentence.level == "slow":
        from app.analysis.mitigation.pipeline_template import recommend_template  # noqa: PLC0415 - as above

        now_s = simulated_s * diagnosis.late
        template = recommend_template(observation, replayed, causes, fixes, now_s)
    return Report(
        trial_name=trace.meta.trial_name,
        sizes=JobSizes(
            dp=sizes.dp, pp=sizes.pp, tp=sizes.tp, cp=sizes.cp, vpp=sizes.vpp, world=sizes.world
        ),
        hosts=dict(trace.meta.hosts),
        gpus=dict(trace.meta.gpus),
        whereabouts=trace.meta.whereabouts,
        workers=Workers(ranks),
        steps=Steps(
            analyzed=tuple(replayed.steps.tolist()),
            dropped=replayed.dropped,
            odd=replayed.odd,
        ),
        coverage=coverage,
        clocks=clocks_of(trace, replayed, metrics, timed=timed),
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
        launch_slowdown=metrics.recorded_step_s / simulated_s,
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
        per_step=PerStep(
            by_optype={
                name: _numbers(times / metrics.ideal_s) for name, times in metrics.by_optype.items()
            },
            by_dp=by_cell((metrics.by_dp / metrics.ideal_s[:, None]).T),
            by_pp=by_cell((metrics.by_pp / metrics.ideal_s[:, None]).T),
            launch_slowdown=_numbers(metrics.recorded_s / metrics.simulated_s),
        ),
        by_worker=_by_worker(replayed, metrics, worst, intervals),
        m_w=RankedRecovery(
            *_recovery(metrics, metrics.worst_workers, metrics.m_w, intervals.m_w),
            workers=metrics.worst,
            published=WorkersRecovery(
                *_recovery(
                    metrics,
                    metrics.published_worst_workers,
                    metrics.published_m_w,
                    intervals.published_m_w,
                ),
                workers=metrics.published_worst,
            ),
        ),
        m_s=Recovery(*_recovery(metrics, metrics.last_stage, metrics.m_s, intervals.m_s)),
        fb_correlation=_correlation(replayed),
        causes=tuple(
            NamedCause(
                cause=cause.cause,
                contribution=cause.contribution,
                cost_s=cause.cost_s,
                confidence=cause.confidence,
                evidence=tuple(line.text for line in cause.evidence),
                views=tuple(line.view for line in cause.evidence),
                where=cause.where,
                figure=cause.figure,
                runner_up=cause.runner_up,
                between_s=cause.between_s,
            )
            for cause in every
        ),
        diagnosis=DiagnosisSummary(
            ruled_out=diagnosis.ruled_out,
            cannot_judge=tuple(
                UnjudgedCause(cause, reason) for cause, reason in diagnosis.unjudged.items()
            ),
            lost_s=diagnosis.lost_s,
            slowdown=diagnosis.slowdown,
            turn_s=diagnosis.turn_s,
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
                fix.redistribution,
            )
            for fix in fixes
        ),
        template=template,
        tensor=tensor,
        verdict=sentence,
        budget=budget,
        computing=computing_of(observation, observation.memoize(slow_together).factor),
    )


def _budget(observation: Observation, replayed: Replayed, metrics: Metrics) -> Budget:
    # Steps of several shapes have no slowdown that all workers share.
    one_shape = len(observation.layout.steps) == len(replayed.steps)
    together = observation.memoize(slow_together).factor if one_shape else None
    return budget_of(split(replayed, metrics, together))


def _by_worker(
    replayed: Replayed, metrics: Metrics, worst: Sequence[Worker], intervals: Intervals
) -> ByWorker:
    exact = metrics.worker_slowdowns
    forward_ratio, backward_ratio = compute_ratios(replayed)
    return ByWorker(
        exact=by_cell(exact),
        approximate=by_cell(metrics.approximate_slowdowns),
        forward_ratio=_finite(forward_ratio),
        backward_ratio=_finite(backward_ratio),
        worst=tuple(
            WorstWorker(worker, float(exact[worker]), interval)
            for worker, interval in zip(worst, intervals.workers, strict=True)
        ),
    )


def _correlation(replayed: Replayed) -> Correlation:
    passes = forward_backward(replayed)
    stride = max(1, math.ceil(len(passes.forward_s) / SAMPLE_POINTS))
    return Correlation(
        pearson=passes.pearson,
        stage=passes.stage,
        points=len(passes.forward_s),
        sample=CorrelationSample(
            forward_s=_numbers(passes.forward_s[::stride]),
            backward_s=_numbers(passes.backward_s[::stride]),
        ),
    )


def _recovery(
    metrics: Metrics,
    contribution: Contribution,
    removal: float | None,
    interval: Interval | None,
) -> tuple[float | None, float | None, Interval | None, float, float]:
    """Return the fields of a `Recovery`: attribution by removal and addition, interval, step times.

    With one stage, the attribution to the last stage by addition is 0 (what-if paper, section 5.2).
    """
    addition = metrics.addition(contribution) if removal != 0.0 else 0.0
    removed_s, kept_s = float(mean(contribution.removed_s)), float(mean(contribution.kept_s))
    return removal, addition, interval, removed_s, kept_s


def _numbers(values: FloatArray) -> tuple[float, ...]:
    return tuple(values.tolist())


def _finite(values: FloatArray) -> tuple[tuple[float | None, ...], ...]:
    return tuple(tuple(x if math.isfinite(x) else None for x in row) for row in values.tolist())

"""Fixes of jobs of the product's own synthesiser: executed again without what the fix removes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from app.analysis.mitigation.fix import Balancing
from app.analysis.report.build import analyze
from app.analysis.synthesis.costs import healthy_work
from app.analysis.synthesis.dials import CAUSES, needs_of
from app.analysis.synthesis.execution import StepWork, execute
from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.injections.computations import (
    GarbageCollection,
    StageImbalance,
    TensorParallelStraggler,
)
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.population import Goal, afflict
from app.analysis.synthesis.program import build_program
from app.analysis.synthesis.random_jobs import draw_job
from app.analysis.synthesis.randomness import stream
from app.analysis.synthesis.synthesize import SyntheticSession, inject, step_numbers
from app.analysis.trace.model import (
    BACKWARD_COMPUTE,
    FORWARD_COMPUTE,
    GRADS_REDUCE_SCATTER,
    OPTIMIZER,
    PARAMS_ALL_GATHER,
)
from tests.referee.fixes.balanced import length_factors
from tests.referee.fixes.independent import interval_of, planned_steps
from tests.referee.fixes.layers import by_stage, chunk_factors, in_order
from tests.referee.fixes.promise import Advised, Promise, Refereed, advised
from tests.referee.judging import NONE

PHYSICS: Final = "own"
# What each fix removes.
REMOVES: Final[Mapping[str, frozenset[str]]] = {
    "replace_worker": frozenset({"slow_worker", "thermal_throttling"}),
    "cool_device": frozenset({"slow_worker", "thermal_throttling"}),
    "replace_rank": frozenset({"tensor_parallel_straggler", "context_parallel_straggler"}),
    "restore_speed": frozenset({"slow_together"}),
    "even_steps": frozenset({"rotating"}),
    "shed_work": frozenset(),
    "defragment_memory": frozenset({"memory_fragmentation"}),
    "separate_kernels": frozenset({"false_kernel_dependency"}),
    "repair_link": frozenset({"network"}),
    "load_ahead": frozenset({"data_loading"}),
    "save_in_background": frozenset({"checkpoint"}),
    "launch_faster": frozenset({"host_overhead"}),
    "plan_garbage_collection": frozenset({"garbage_collection"}),
    "even_stages": frozenset(),
    "even_microbatches": frozenset({"sequence_length_imbalance"}),
}


def referee(seed: int, healthy: float, only: str | None) -> Refereed:
    """Draw the job of a seed, analyze it, and make each fix that its report advises."""
    rng = stream(seed, "fixes")
    cause: str | None = str(rng.choice(CAUSES)) if rng.random() >= healthy else None
    cause = only if only is not None else cause
    slowdown = min(1.12 + float(rng.exponential(0.3)), 3.0)
    causes = () if cause is None else (cause,)
    job = draw_job(stream(seed, "population"), needs_of(causes))
    if job.sizes.pp > 1 and rng.random() >= 0.3:
        job = replace(job, layers=(int(rng.integers(3, 17)) * job.sizes.vpp,) * job.sizes.pp)
    session = afflict(job, causes, Goal(slowdown), seed)
    report = analyze(session.trace).report
    now_s = sum(session.truth.step_times_s)
    promises, unexecuted = [], []
    for item in advised(report):
        if item.fix.action not in REMOVES:
            unexecuted.append(item.fix.action)
            continue
        promises.append(
            Promise(
                seed=seed,
                physics=PHYSICS,
                fault=cause or NONE,
                action=item.fix.action,
                at_most=item.fix.at_most,
                promised=1 / (1 - item.fix.predicted_gain),
                realised=now_s / made_s(session, item),
            )
        )
    return Refereed(seed, PHYSICS, cause or NONE, cause is None, tuple(promises), tuple(unexecuted))


def made_s(session: SyntheticSession, item: Advised) -> float:
    """Return what the steps of a session take with a fix made, all draws as they were."""
    job, seed = session.job, session.seed
    removed = {
        number
        for number, injection in enumerate(session.injections)
        if injection.cause in REMOVES[item.fix.action] and _is_meant(injection, job, item)
    }
    work = healthy_work(job, build_program(job), seed)
    work.numbers = step_numbers(job, seed)
    if item.fix.action == "even_stages":
        work = _divided(work, session, item)
    elif item.fix.action == "shed_work":
        work = _work_shed(work, session, item)
    elif item.fix.balancing is not None and removed:
        work = _balanced(work, session, item.fix.balancing)
    else:
        inject(work, job, session.injections, seed, without=removed)
    if item.fix.action == "plan_garbage_collection":
        for number in removed:
            _collect_together(work, session, session.injections[number], item)
    return float(execute(work, job.costs.contention).step_times_ns().sum()) / 1e9


def _is_meant(injection: Injection, job: JobModel, item: Advised) -> bool:
    """Return whether a fix is about the workers of an injection."""
    struck, named = injection.workers(job), item.workers
    if not struck:
        return True
    if not named:
        stage = item.where.stage
        return stage is None or any(pp == stage for _, pp in struck)
    return bool(set(struck) & set(named))


def _collect_together(
    work: StepWork, session: SyntheticSession, removed: Injection, item: Advised
) -> None:
    """Pause everybody before the planned steps, each for what its collections take by then."""
    assert isinstance(removed, GarbageCollection)
    job = session.job
    rng = stream(session.seed, "planned collections")
    age = np.linspace(0.0, 1.0, job.steps)
    for step in planned_steps(job.steps, interval_of(item)):
        # `program.first` has an operation of each stage.
        size = (len(work.program.first), job.sizes.dp)
        pause_ns = removed.pause_ns * (1 + removed.growth * age[step])
        work.delay_ns[list(work.program.first), step] += pause_ns * rng.lognormal(-0.02, 0.2, size)


def _work_shed(work: StepWork, session: SyntheticSession, item: Advised) -> StepWork:
    """Let ranks compute as many columns as the plans leave them."""
    job, program = session.job, work.program
    healthy_ns = work.duration_ns.copy()
    inject(work, job, session.injections, session.seed)
    assert item.report.tensor is not None
    left = {group.worker: group.advice for group in item.report.tensor.groups}
    for number, injection in enumerate(session.injections):
        if not isinstance(injection, TensorParallelStraggler) or injection.worker not in left:
            continue
        advice, (dp, pp) = left[injection.worker], injection.worker
        rng = stream(session.seed, "injection", number, injection.cause)
        times = np.ones((job.sizes.tp, job.steps))
        active = injection.spells.active(job.steps, rng)
        times[injection.tensor_rank, active] = injection.factor
        for share in advice.best.ranks:
            less = share.resized_columns + share.migrated_columns - share.received_columns
            times[share.rank] *= 1 - less / advice.columns
        mine = program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE) & (program.stage == pp)
        shared = job.costs.tensor_share
        factor = shared + (1 - shared) * times.max(axis=0)
        work.duration_ns[mine, :, dp] = healthy_ns[mine, :, dp] * factor
    return work


def _balanced(work: StepWork, session: SyntheticSession, plan: Balancing) -> StepWork:
    """Divide the sequences as the report says."""
    job, program = session.job, work.program
    healthy_ns = work.duration_ns.copy()
    inject(work, job, session.injections, session.seed)
    assert work.lengths is not None
    batches = [
        [[[s for s in mb if s] for mb in rank] for rank in step]
        for step in work.lengths.transpose(1, 2, 0, 3).tolist()
    ]
    for name in (FORWARD_COMPUTE, BACKWARD_COMPUTE):
        mine = program.of_types(name)
        microbatch = program.microbatch[mine]
        first = [int(np.argmax(microbatch == number)) for number in np.unique(microbatch)]
        takes = (work.duration_ns[mine] / healthy_ns[mine])[first]
        work.duration_ns[mine] *= length_factors(batches, takes, plan)[microbatch]
    return work


def _divided(work: StepWork, session: SyntheticSession, item: Advised) -> StepWork:
    """Divide the layers as the report says; as a bound, evenly by what they take."""
    job, program, division = session.job, work.program, item.fix.division
    stages, chunks = job.sizes.pp, job.sizes.vpp
    base = {FORWARD_COMPUTE: np.ones((stages, chunks)), BACKWARD_COMPUTE: np.ones((stages, chunks))}
    for surplus in base.values():
        surplus[0, 0] *= 1 + job.costs.embedding_fraction * chunks
        surplus[-1, -1] *= 1 + job.costs.loss_fraction * chunks
    struck = {name: surplus.copy() for name, surplus in base.items()}
    for injection in session.injections:
        if isinstance(injection, StageImbalance):
            at = injection.stage(job)
            struck[FORWARD_COMPUTE][at, -1] *= 1 + (injection.forward_factor - 1) * chunks
            struck[BACKWARD_COMPUTE][at, -1] *= 1 + (injection.backward_factor - 1) * chunks
    inject(work, job, session.injections, session.seed)
    places = program.stage, np.maximum(program.chunk, 0)
    for name, surplus in struck.items():
        if division is None:
            factor = surplus.mean() / surplus
        else:
            today, after = in_order(division.today), in_order(division.layers)
            factor = by_stage(chunk_factors(today, after, surplus.T.ravel()), stages)
        mine = program.of_types(name)
        work.duration_ns[mine] *= factor[places][mine][:, None, None]
    if division is not None:
        share = by_stage(np.asarray(after / today), stages)
        mine = program.of_types(PARAMS_ALL_GATHER, GRADS_REDUCE_SCATTER)
        work.duration_ns[mine] *= share[places][mine][:, None, None]
        mine = program.of_types(OPTIMIZER)
        counts = [[sum(chunks) for chunks in table] for table in (division.today, division.layers)]
        of_stage = np.array(counts[1]) / np.array(counts[0])
        work.duration_ns[mine] *= of_stage[program.stage[mine]][:, None, None]
    return work

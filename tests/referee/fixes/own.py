"""Fixes in jobs of the product's synthesizer, executed again with the fix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.mitigation.fixes import Balancing, ByChunk
from app.analysis.report.build import analyze
from app.analysis.synthesis.costs import healthy_work
from app.analysis.synthesis.execution import StepWork, execute
from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.injections.computations import (
    GarbageCollection,
    StageImbalance,
    TensorParallelStraggler,
)
from app.analysis.synthesis.job import JobModel, draw_job, stream
from app.analysis.synthesis.program import build_program
from app.analysis.synthesis.random_sessions import (
    CAUSES,
    CHECKPOINTS_WRITTEN,
    LAST_STAGE,
    LOADER_STALLS,
    afflict,
    goal_of,
    needs_of,
)
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
from tests.referee.fixes.layers import Floats, by_stage, chunk_factors, in_order
from tests.referee.fixes.promise import (
    TEMPLATE,
    Advised,
    OfJob,
    Promise,
    Refereed,
    advised,
    divisions_of_template,
    shown_template,
)
from tests.referee.judging import NONE

PHYSICS: Final = "own"
# The injections that each fix removes.
REMOVES: Final[Mapping[str, frozenset[str]]] = {
    "replace_worker": frozenset({"slow_worker", "thermal_throttling"}),
    "cool_device": frozenset({"slow_worker", "thermal_throttling"}),
    "replace_rank": frozenset({"tensor_parallel_straggler", "context_parallel_straggler"}),
    "separate_traffic": frozenset({"network_congestion"}),
    "balance_experts": frozenset({"expert_parallel_imbalance"}),
    "restore_speed": frozenset({"slow_together"}),
    "even_steps": frozenset({"rotating"}),
    "share_microbatches": frozenset({"uneven_microbatches"}),
    "redistribute_microbatches": frozenset(),
    "shed_work": frozenset(),
    "defragment_memory": frozenset({"memory_fragmentation"}),
    "separate_kernels": frozenset({"false_kernel_dependency"}),
    "repair_link": frozenset({"network"}),
    "load_ahead": frozenset({"data_loading"}),
    "save_in_background": frozenset({"checkpoint"}),
    "evaluate_elsewhere": frozenset({"evaluation"}),
    "name_standstill": frozenset({"between_steps"}),
    "launch_faster": frozenset({"host_overhead"}),
    "plan_garbage_collection": frozenset({"garbage_collection"}),
    "even_stages": frozenset(),
    "even_microbatches": frozenset({"sequence_length_imbalance"}),
}
# Jobs with two causes, or with a cause that the score of the diagnosis leaves out.
MIXED: Final[Mapping[str, tuple[str, ...]]] = {
    " + ".join(causes): causes
    for causes in (
        (LAST_STAGE,),
        ("slow_worker", LAST_STAGE),
        ("slow_worker", "stage_imbalance"),
        ("thermal_throttling", LAST_STAGE),
        ("slow_worker", "data_loading"),
        ("slow_worker", "checkpoint"),
        ("slow_worker", "network"),
        ("slow_worker", "garbage_collection"),
        (LAST_STAGE, "data_loading"),
        (LAST_STAGE, "network"),
        (LAST_STAGE, "garbage_collection"),
        ("data_loading", "checkpoint"),
        (LOADER_STALLS,),
        (CHECKPOINTS_WRITTEN,),
        (LOADER_STALLS, CHECKPOINTS_WRITTEN),
        ("slow_worker", CHECKPOINTS_WRITTEN),
    )
}


def referee(seed: int, healthy: float, only: str | None) -> Refereed:
    """Draw the job of a seed, analyze it, and execute it with each recommended fix."""
    name = only if only is not None else _draw_causes(seed, healthy)
    causes = MIXED.get(name or "", () if name is None else (name,))
    rng = stream(seed, "fixes slowdown")
    slowdown = min(1.12 + float(rng.exponential(0.3)), 3.0)
    job = draw_job(stream(seed, "population"), needs_of(causes))
    if job.sizes.pp > 1 and rng.random() >= 0.3:
        job = replace(job, layers=(int(rng.integers(3, 17)) * job.sizes.vpp,) * job.sizes.pp)
    session = afflict(job, causes, goal_of(causes, slowdown), seed)
    report = analyze(session.trace).report
    # The time before the first step is not recorded.
    turns_s, steps_s = sum(session.truth.turns_s[1:]), sum(session.truth.step_times_s)

    of_job = OfJob(seed, PHYSICS, name or NONE)
    promises: list[Promise] = []
    unexecuted: list[str] = []
    for item in advised(report):
        if item.fix.action not in REMOVES:
            unexecuted.append(item.fix.action)
            continue
        fix, now_s = item.fix, turns_s if item.of_turns else steps_s
        promises.append(
            of_job.promise(
                fix.action,
                fix.predicted_gain,
                now_s / made_s(session, item),
                at_most=fix.at_most,
                itself=item.described,
            )
        )
    template = shown_template(report)
    if template is not None:
        today, after = divisions_of_template(template, report)
        after_s = executed_s(_arranged(session, today, after, template.worker_of_stage), session)
        promises.append(
            of_job.promise(
                TEMPLATE, template.predicted_gain, steps_s / after_s, at_most=template.at_most
            )
        )
    return of_job.refereed(promises, unexecuted, healthy=not causes)


def _draw_causes(seed: int, healthy: float) -> str | None:
    """Return the causes of a random job: none, one, or a mixed kind, equally often."""
    rng = stream(seed, "fixes")
    if rng.random() < healthy:
        return None
    return str(rng.choice(CAUSES if rng.random() < 0.5 else list(MIXED)))


def made_s(session: SyntheticSession, item: Advised) -> float:
    """Return the step times of a session with a fix, with all other draws equal."""
    job, seed = session.job, session.seed
    removed = {
        number
        for number, injection in enumerate(session.injections)
        if injection.cause in REMOVES[item.fix.action] and _is_meant(injection, job, item)
    }
    if item.fix.action == "even_stages":
        return executed_s(_divided(session, item), session, of_turns=item.of_turns)
    if item.fix.redistribution is not None:
        counts = item.fix.redistribution.microbatches
        return executed_s(redistributed(session, counts), session, of_turns=item.of_turns)
    work = _healthy(session)
    if item.fix.action == "shed_work":
        work = _work_shed(work, session, item)
    elif item.fix.balancing is not None and removed:
        work = _balanced(work, session, item.fix.balancing)
    else:
        inject(work, job, session.injections, seed, without=removed)
    if item.fix.action == "plan_garbage_collection":
        for number in removed:
            _collect_together(work, session, session.injections[number], item)
    return executed_s(work, session, of_turns=item.of_turns)


def executed_s(work: StepWork, session: SyntheticSession, *, of_turns: bool = False) -> float:
    """Return the step times of a session with other work, optionally with the gaps before."""
    execution = execute(work, session.job.costs.contention)
    if of_turns:
        turns_ns = execution.turn_times_ns()[1:] + session.job.costs.step_gap_ns
        return float(turns_ns.sum()) / 1e9
    return float(execution.step_times_ns().sum()) / 1e9


def _healthy(session: SyntheticSession) -> StepWork:
    work = healthy_work(session.job, build_program(session.job), session.seed)
    work.numbers = step_numbers(session.job, session.seed)
    return work


def _is_meant(injection: Injection, job: JobModel, item: Advised) -> bool:
    """Return whether a fix concerns the workers of an injection."""
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
    """Pause all workers before the planned steps, each as long as its collections then take."""
    assert isinstance(removed, GarbageCollection)
    job = session.job
    rng = stream(session.seed, "planned collections")
    age = np.linspace(0.0, 1.0, job.steps)
    for step in planned_steps(job.steps, interval_of(item)):
        # `program.first` contains an operation of each stage.
        size = (len(work.program.first), job.sizes.dp)
        pause_ns = removed.pause_ns * (1 + removed.growth * age[step])
        work.delay_ns[list(work.program.first), step] += pause_ns * rng.lognormal(-0.02, 0.2, size)


def _work_shed(work: StepWork, session: SyntheticSession, item: Advised) -> StepWork:
    """Let ranks compute the columns that the plans leave them."""
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
    """Divide the sequences as the report recommends."""
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


def redistributed(session: SyntheticSession, counts: Sequence[int]) -> StepWork:
    """Let each DP rank run its number of microbatches.

    Ranks with fewer than the others do not run the last microbatches, which then take no time.
    """
    job = replace(session.job, microbatches=max(counts))
    work = healthy_work(job, build_program(job), session.seed)
    work.numbers = step_numbers(job, session.seed)
    inject(work, job, session.injections, session.seed)
    idle = work.program.microbatch[:, None] >= np.array(counts)
    for times in (work.duration_ns, work.delay_ns):
        times[np.broadcast_to(idle[:, None], times.shape)] = 0.0
    return work


def _divided(session: SyntheticSession, item: Advised) -> StepWork:
    """Divide the layers as the report recommends; for an upper bound, evenly by their times."""
    division = item.fix.division
    if division is not None:
        return _arranged(session, division.today, division.layers)
    work = _healthy(session)
    base, struck = _surpluses(session)
    for name, surplus in struck.items():
        factor = surplus.mean() / base[name]
        mine, stage, chunk = _passes(work, name)
        work.duration_ns[mine] *= factor[stage, chunk][:, None, None]
    _inject_others(work, session)
    return work


def _arranged(
    session: SyntheticSession,
    today: ByChunk,
    after: ByChunk,
    workers: Sequence[int] | None = None,
) -> StepWork:
    """Divide the layers anew, each with its true cost.

    Workers that move to another stage keep their speed and their faults.
    """
    job, work = session.job, _healthy(session)
    stages = job.sizes.pp
    places = np.arange(stages) if workers is None else np.array(workers)
    before, then = in_order(today), in_order(after)
    base, struck = _surpluses(session)
    for name, surplus in struck.items():
        # Without heavy stages, whose additional work belongs to the stage.
        had = by_stage(before, stages) * base[name]
        of_chunk = surplus.T.ravel()
        gets = chunk_factors(before, then, of_chunk) * before * of_chunk
        factor = by_stage(gets, stages) / had[places]
        mine, stage, chunk = _passes(work, name)
        own_ns = work.duration_ns[mine]
        moved_ns = own_ns.copy()
        for at, place in enumerate(places.tolist()):
            # The program lists a stage's passes of a type in the same order on each worker.
            moved_ns[stage == at] = own_ns[stage == place]
        work.duration_ns[mine] = moved_ns * factor[stage, chunk][:, None, None]
    _inject_others(work, session, places)
    share = by_stage(np.asarray(then / before), stages)
    mine, stage, chunk = _passes(work, PARAMS_ALL_GATHER, GRADS_REDUCE_SCATTER)
    work.duration_ns[mine] *= share[stage, chunk][:, None, None]
    mine, stage, _ = _passes(work, OPTIMIZER)
    counts = [[sum(chunks) for chunks in table] for table in (today, after)]
    work.duration_ns[mine] *= (np.array(counts[1]) / np.array(counts[0]))[stage][:, None, None]
    return work


def _passes(
    work: StepWork, *names: str
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the operations of some types, with stage and chunk of each."""
    mine = np.flatnonzero(work.program.of_types(*names))
    stage = np.asarray(work.program.stage, dtype=np.int64)[mine]
    return mine, stage, np.maximum(np.asarray(work.program.chunk, dtype=np.int64)[mine], 0)


def _surpluses(session: SyntheticSession) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Return the times of chunks relative to their layers, healthy and with heavy stages."""
    job = session.job
    chunks = job.sizes.vpp
    size = (job.sizes.pp, chunks)
    base = {FORWARD_COMPUTE: np.ones(size), BACKWARD_COMPUTE: np.ones(size)}
    for surplus in base.values():
        surplus[0, 0] *= 1 + job.costs.embedding_fraction * chunks
        surplus[-1, -1] *= 1 + job.costs.loss_fraction * chunks
    struck = {name: surplus.copy() for name, surplus in base.items()}
    for injection in session.injections:
        if isinstance(injection, StageImbalance):
            at = injection.stage(job)
            struck[FORWARD_COMPUTE][at, -1] *= 1 + (injection.forward_factor - 1) * chunks
            struck[BACKWARD_COMPUTE][at, -1] *= 1 + (injection.backward_factor - 1) * chunks
    return base, struck


def _inject_others(
    work: StepWork, session: SyntheticSession, places: NDArray[np.int64] | None = None
) -> None:
    """Inject all faults but heavy stages; workers may have moved to other stages."""
    moved = list(session.injections)
    for number, injection in enumerate(moved):
        worker = getattr(injection, "worker", None)
        # A slow link stays in its place, whichever workers are at its ends.
        if worker is not None and places is not None and injection.cause != "network":
            stage = places.tolist().index(worker[1])
            moved[number] = replace(injection, worker=(worker[0], stage))  # type: ignore[call-arg]
    heavy = {n for n, one in enumerate(moved) if isinstance(one, StageImbalance)}
    inject(work, session.job, moved, session.seed, without=heavy)

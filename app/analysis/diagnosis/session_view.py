"""Signs of a session that all finders of causes share; heavy stages apart from slow workers.

With one DP rank a worker has no peers, but its stage has peers: if layers are divided evenly, the
other stages compute equally long. Embedding and head may make the first or the last stage heavy
even with as many layers as the other stages; for these stages both causes are named, unless the
model in the metadata gives the FLOPs of the head. A stage is heavy in all steps: if it computes as
fast as the others in a stretch of steps, its worker is slow in the other steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from app.analysis.diagnosis.earlier_sessions import EarlierSession, Past, against_past, computing_of
from app.analysis.diagnosis.finding import (
    Alternative,
    Change,
    Doubt,
    Evidence,
    Finding,
    StageLoad,
    Uncertainty,
    WorkerSteps,
)
from app.analysis.diagnosis.group_waits import (
    Waiting,
    Waits,
    has_tensor_ranks,
    measure_waits,
    waiting_groups,
)
from app.analysis.diagnosis.late_launches import StalledLaunches, stalled_launches
from app.analysis.diagnosis.locations import SlowSpells, StageView, Where, WorkerView
from app.analysis.diagnosis.microbatch_effects import Effects, slowness_by_stage, split_effects
from app.analysis.diagnosis.observation import (
    Explained,
    Observation,
    lower_median,
    robust_deviation,
)
from app.analysis.diagnosis.recorded_lengths import slow_together, some_lengths
from app.analysis.diagnosis.step_gaps import StepGaps
from app.analysis.quantities import FloatArray, IntArray
from app.analysis.replay.robust_statistics import median
from app.analysis.trace.parallelism import head_in_layers, layers_per_stage

_HEAD: Final = "with one DP rank embedding or head may make this stage heavy"
_NO_LAYERS: Final = "with one DP rank it is unknown which, as the metadata lack the layers"
_OTHER_MACHINES: Final = "compare with a session in which other machines run the stages"
_NO_PEERS: Final = "one DP rank alone recorded this stage"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide whether a stage is heavy, or has a slow worker without peers."""

    heavy: float = 1.03  # ratio of the heaviest stage to the mean of all
    # A stage is slow from this ratio to the median of the other stages, forward and backward.
    slow: float = 1.04
    slow_one_way: float = 0.1  # …or from this excess on in one direction only
    to_slowest: float = 0.25  # excess of other slow stages, as a share of the slowest one's
    alike: float = 1.5  # A slow worker's forward and backward excess differ by this factor at most.
    in_doubt: float = 0.85  # highest confidence where both causes are possible
    as_before: float = 0.95  # …of a stage that took as long in an earlier session
    one_session: float = 0.9  # …of a slow worker with a single earlier session
    # Half of the relative 95 % interval of a step without the cause: stages of an evenly divided
    # model differ by up to this share, but are replayed as equal.
    uneven: float = 0.004
    # Highest cost of a head, in layers (what-if paper, section 5.2: over nine layers). An embedding
    # is a lookup and costs almost nothing.
    head_layers: int = 12
    # A head whose FLOPs are known costs at most this many times as many layers, as its kernels have
    # another efficiency than those of layers.
    to_flops: float = 2.0
    # …plus this many layers: modules that predict further tokens are not in `layers`.
    further_layers: float = 2.0
    # Fewest consecutive steps of a stretch in which a slow worker is fast…
    stretch: int = 3
    # …and its largest excess over the other stages, as a share of the typical step's excess…
    in_stretch: float = 0.5
    # …which differ by this many standard deviations of the steps.
    to_scatter: float = 6.0


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class StageOrWorker:
    """Reason why a stage takes longest: heavy, or a slow worker; in doubt if both are possible.

    Both fields are set only if earlier sessions distinguish the two causes.
    """

    heavy: Finding | None
    slow: Finding | None


def heaviest_stage(observation: Observation, slower: FloatArray | None = None) -> Finding | None:
    """Return the heaviest stage; without the cause all stages compute equally long; None if equal.

    `slower`, shape (pp,), is the slowdown of each stage's worker, if known.
    """
    if not observation.comparable:
        return None
    by_worker = 1.0 if slower is None else slower[:, None]
    # The median over the DP ranks: a single slow worker must not make a heavy stage.
    levels = {
        name: np.asarray(lower_median(passes.own_ns, axis=2) / by_worker)
        for name, passes in observation.passes.items()
    }
    total = np.sum([level.sum(axis=1) for level in levels.values()], axis=0)
    heaviest = int(np.argmax(total))
    if observation.layout.pp == 1 or total[heaviest] < THRESHOLDS.heavy * np.mean(total):
        return None
    times: dict[int, FloatArray] = {}
    for name, passes in observation.passes.items():
        level = levels[name]
        factor = float(np.mean(level)) / level
        for of_chunk, nodes in zip(factor, passes.nodes, strict=True):
            # Nodes with the same factor share an array.
            own = [np.asarray(value) for value in of_chunk]
            for node, chunk in zip(nodes.tolist(), passes.chunk.tolist(), strict=True):
                times[node] = own[chunk]
    others = np.arange(len(total)) != heaviest
    ratios = {
        name.split("-")[0]: float(level.sum(axis=1)[heaviest] / median(level.sum(axis=1)[others]))
        for name, level in levels.items()
    }
    listed = ", ".join(f"{name} {ratio:.2f}×" for name, ratio in ratios.items())
    which = "The last stage" if heaviest == len(total) - 1 else f"Stage {heaviest}"
    evidence = Evidence(
        f"{which} against the median of the other stages: {listed}, on every DP rank",
        StageView(pp=heaviest),
    )
    return Finding(
        change=Change(times=times),
        evidence=(evidence,),
        where=Where(stage=heaviest),
        figure=StageLoad(relative=tuple((total / np.mean(total)).tolist())),
        uncertainty=Uncertainty(THRESHOLDS.uneven),
    )


def tell_apart(observation: Observation, past: Past | None = None) -> StageOrWorker:
    """Return the stage that takes longest, as too heavy or, with one DP rank, as a slow worker.

    With one DP rank, earlier sessions show which worker has become slow. A stage that took as long
    in the earlier sessions is heavy, or its worker was already slow.
    """
    heavy = heaviest_stage(observation)
    if heavy is not None and heavy.where.stage is not None and observation.layout.dp == 1:
        spells = _slow_spells(observation, heavy.where.stage)
        if spells is not None:
            return spells
    by_layers = _by_layers(observation, heavy)
    of_rank = past is not None and observation.layout.dp == 1 and observation.layout.pp > 1
    if past is None or not of_rank or np.isnan(past.ratio).any():
        return by_layers
    beyond = past.alone(shared=observation.shares_processors)
    if not observation.passes or (beyond == 1).all():
        return _as_before(by_layers, past)
    without = heaviest_stage(observation, beyond)
    return StageOrWorker(without, _slower_than_before(observation, past, beyond))


def _by_layers(observation: Observation, heavy: Finding | None) -> StageOrWorker:
    """Return the reason why a stage takes longest, judged by its number of layers."""
    pp = observation.layout.pp
    if heavy is None or heavy.where.stage is None:
        return StageOrWorker(heavy, None)
    stage = heavy.where.stage
    if observation.layout.dp > 1:
        absent = observation.layout.absent
        alone = absent is not None and int((~absent[:, stage]).sum()) == 1
        return StageOrWorker(_doubted(observation, heavy, _NO_PEERS) if alone else heavy, None)
    layers, work, _ = _work(observation)
    ratio = {}
    for name, passes in observation.passes.items():
        rate = lower_median(passes.own_ns, axis=2).sum(axis=1) / work
        others = [float(np.median(np.delete(rate, stage))) for stage in range(len(rate))]
        ratio[name] = rate / np.array(others)
    slowness = np.min(list(ratio.values()), axis=0)
    most = np.max(list(ratio.values()), axis=0)
    inner = np.arange(1, pp - 1)
    if most[stage] < THRESHOLDS.slow:
        # The number of layers explains the time of the stage.
        return StageOrWorker(heavy if layers else _doubted(observation, heavy, _HEAD), None)
    if stage not in inner:
        return _first_or_last(observation, heavy, stage, ratio)
    slow_stages = (slowness >= THRESHOLDS.slow) | (most >= 1 + THRESHOLDS.slow_one_way)
    excess = _level(ratio) - 1
    inner_slow = inner[
        slow_stages[inner] & (excess[inner] >= THRESHOLDS.to_slowest * excess[stage])
    ]
    if stage not in inner_slow:
        return StageOrWorker(_doubted(observation, heavy, _HEAD), None)
    slow = _slow_workers(
        observation, ratio, inner_slow[np.argsort(-excess[inner_slow], kind="stable")]
    )
    return StageOrWorker(None, slow if layers else _doubted(observation, slow, _NO_LAYERS, heavy))


def _first_or_last(
    observation: Observation, heavy: Finding, stage: int, ratio: dict[str, FloatArray]
) -> StageOrWorker:
    """Return the reason why the first or the last stage takes longer than its layers explain.

    The embedding or the head may make the stage heavy: both causes are named, the likelier cause
    first, unless the FLOPs of the head decide, or the last stage is slow as a loss is: in both
    directions, but more in forwards.

    Parameters
    ----------
    ratio : dict of str to float64 array
        By operation type: time of each stage by layer ÷ that of the other stages, shape (pp,).
    """
    layers, work, head = _work(observation)
    excess = [float(of_stages[stage]) - 1 for of_stages in ratio.values()]
    like_a_loss = min(excess) >= THRESHOLDS.slow - 1 and max(excess) > THRESHOLDS.alike * min(
        excess
    )
    if like_a_loss and stage > 0:
        return StageOrWorker(_doubted(observation, heavy, _HEAD), None)
    slow = _slow_workers(observation, ratio, np.array([stage]))
    beyond = min(excess) * work[stage]
    if head is not None:
        most = (THRESHOLDS.to_flops - 1) * head + THRESHOLDS.further_layers
        if stage == 0 or beyond > most:
            return StageOrWorker(None, slow)
    if layers and (stage == 0 or beyond > THRESHOLDS.head_layers):
        return StageOrWorker(None, _doubted(observation, slow, _HEAD, heavy))
    return StageOrWorker(_doubted(observation, heavy, _HEAD, slow), None)


def _work(observation: Observation) -> tuple[tuple[int, ...] | None, FloatArray, float | None]:
    """Return the layers of each stage, the work of each stage, (pp,), and that of the head.

    Work is in layers; the layers, and the work of the head, are None if the metadata lack them.
    """
    extra, pp = observation.trace.meta.extra, observation.layout.pp
    layers = layers_per_stage(extra, pp)
    work = np.array(layers or [1] * pp, dtype=np.float64)
    # Where microbatches turn back, the last stage does not have the head.
    head = head_in_layers(extra) if layers and not observation.layout.routes else None
    work[-1] += head or 0.0
    return layers, work, head


def _slow_spells(observation: Observation, stage: int) -> StageOrWorker | None:
    """Return the slow worker of a stage, if the stage is not heavy in a stretch of steps.

    Without its worker's slowness another stage, or the same one, may be heavy. None if there is no
    such stretch: the stage may be heavy.
    """
    _, work, _ = _work(observation)
    expected = float(work[stage] / np.median(np.delete(work, stage)))
    ratios: dict[str, FloatArray] = {}
    own_ns = np.zeros(len(observation.layout.steps))
    for name, passes in observation.passes.items():
        by_step = np.median(passes.times_ns[..., 0], axis=1)
        ratios[name] = by_step[stage] / np.median(np.delete(by_step, stage, axis=0), axis=0)
        own_ns += by_step[stage]
    lower = np.min(list(ratios.values()), axis=0) / expected
    count = len(lower)
    length = max(THRESHOLDS.stretch, count // 10)
    if count < 2 * length:
        return None
    levels = np.median(sliding_window_view(lower, length), axis=1)
    first = int(levels.argmin())
    stretch = slice(first, first + length)
    fast, typical = float(levels[first]), float(np.median(lower))
    noise = robust_deviation(np.diff(lower)) / np.sqrt(2)
    # Another stage that is slow in the stretch also lowers the ratio, but not the stage's own time.
    own = float(np.median(own_ns) / np.median(own_ns[stretch]))
    drop = typical / fast
    if (
        fast - 1 > THRESHOLDS.in_stretch * (typical - 1)
        or typical - fast < THRESHOLDS.to_scatter * noise
        or own - 1 < THRESHOLDS.in_stretch * (drop - 1)
    ):
        return None
    times: dict[int, FloatArray] = {}
    for name, ratio in ratios.items():
        factor = np.minimum(np.median(ratio[stretch]) / ratio, 1.0)[:, None]
        times.update(dict.fromkeys(observation.computations(name, stage), factor))
    slow = lower > (fast + typical) / 2
    steps = observation.layout.steps[stretch]
    evidence = Evidence(
        f"{observation.hosts.subject((0, stage))}: {drop:.2f}× as long in {int(slow.sum())} of "
        f"{count} steps as in steps {steps[0]} to {steps[-1]}, against the other stages: a heavy "
        "stage would be heavy in all",
        WorkerView(dp=0, pp=stage),
    )
    finding = Finding(
        change=Change(times=times),
        evidence=(evidence,),
        where=Where(
            workers=((0, stage),),
            stage=stage,
            spells=SlowSpells(steps=int(slow.sum()), of=count, times=drop),
        ),
        figure=WorkerSteps(worker=(0, stage), ratio=tuple((lower / fast).tolist()), times=drop),
        uncertainty=Uncertainty(THRESHOLDS.uneven),
    )
    slower = np.ones(len(work))
    slower[stage] = drop
    return StageOrWorker(heaviest_stage(observation, slower), finding)


def _slower_than_before(observation: Observation, past: Past, beyond: FloatArray) -> Finding:
    """Return the workers of a single DP rank that have slowed down more than the others."""
    stages = np.flatnonzero(beyond > 1)
    # Earlier sessions contain the total computing time of a worker, so all types get the same
    # ratio.
    ratio = dict.fromkeys(observation.passes, beyond)
    finding = _slow_workers(observation, ratio, stages[np.argsort(-beyond[stages], kind="stable")])
    evidence = tuple(
        Evidence(
            f"{observation.hosts.subject((dp, stage))} computes {beyond[stage]:.2f}× as long as "
            f"in session {past.number}, over what the other stages do",
            WorkerView(dp=dp, pp=stage),
        )
        for dp, stage in finding.where.workers
    )
    doubt = Doubt(THRESHOLDS.one_session) if past.sessions == 1 else None
    return replace(finding, evidence=evidence, doubt=doubt)


def _as_before(reason: StageOrWorker, past: Past) -> StageOrWorker:
    """Return a heavy stage with less doubt, if it took as long in an earlier session."""
    heavy = reason.heavy
    if heavy is None or heavy.doubt is None or heavy.where.stage is None:
        return reason
    line = Evidence(
        f"Against the other stages it took as long in session {past.number}: no worker has become "
        "slow since",
        StageView(pp=heavy.where.stage),
    )
    doubt = Doubt(THRESHOLDS.as_before)
    return StageOrWorker(replace(heavy, evidence=(*heavy.evidence, line), doubt=doubt), None)


def _level(ratio: Mapping[str, FloatArray]) -> FloatArray:
    """Return the ratio of each stage to the others in its faster direction, shape (pp,).

    For a stage that is slow in one direction only, return the mean over both directions.
    """
    both = np.array(list(ratio.values()))
    fast_in_one = both.min(axis=0) < THRESHOLDS.slow
    one_way = fast_in_one & (both.max(axis=0) >= 1 + THRESHOLDS.slow_one_way)
    return np.asarray(np.where(one_way, both.mean(axis=0), both.min(axis=0)))


def _slow_workers(
    observation: Observation, ratio: dict[str, FloatArray], stages: IntArray
) -> Finding:
    """Return the finding that the workers of some stages are slow, the slowest first."""
    times: dict[int, FloatArray] = {}
    for name, by_stage in ratio.items():
        for stage in stages.tolist():
            factor = np.asarray(1 / by_stage[stage])
            times.update(dict.fromkeys(observation.computations(name, stage), factor))
    evidence = [
        Evidence(
            f"{observation.hosts.subject((0, stage))}: "
            + ", ".join(
                f"{name.split('-')[0]} {by_stage[stage]:.2f}×" for name, by_stage in ratio.items()
            )
            + " the median of the other stages, by layer",
            WorkerView(dp=0, pp=stage),
        )
        for stage in stages.tolist()
    ]
    worst = int(stages[0])
    return Finding(
        change=Change(times=times),
        evidence=tuple(evidence),
        where=Where(workers=tuple((0, stage) for stage in stages.tolist()), stage=worst),
        figure=StageLoad(relative=tuple(_level(ratio).tolist())),
        uncertainty=Uncertainty(THRESHOLDS.uneven),
    )


def _doubted(
    observation: Observation, finding: Finding, why: str, other: Finding | None = None
) -> Finding:
    """Return a finding in doubt, because another cause has the same sign."""
    stage = finding.where.stage
    missing = _missing_metadata(observation.trace.meta.extra, observation.layout.pp)
    ways = [f"record {missing} in the metadata"] if missing else []
    ways.append(_OTHER_MACHINES)
    line = Evidence(
        f"Uneven cost or a slow worker: {why}. To tell them apart: {', or '.join(ways)}",
        None if stage is None else StageView(pp=stage),
    )
    alternative = None
    if other is not None:
        alternative = Alternative((*other.evidence, line), other.where, other.change)
    doubt = Doubt(THRESHOLDS.in_doubt, alternative)
    return replace(finding, evidence=(*finding.evidence, line), doubt=doubt)


def _missing_metadata(extra: Mapping[str, Any], pp: int) -> str:
    """Return the metadata that would give the work of each stage; empty if nothing is missing."""
    missing = [] if layers_per_stage(extra, pp) else ["layers"]
    if head_in_layers(extra) is None:
        missing += [name for name in ("model", "seq_length") if name not in extra] or ["model"]
    return " and ".join(filter(None, [", ".join(missing[:-1]), *missing[-1:]]))


@dataclass(frozen=True, eq=False)
class Signs:
    """Signs of a session that the finders of causes share, each computed at its first use."""

    observation: Observation
    step_ns: float  # the mean recorded step
    earlier: Sequence[EarlierSession] = ()  # of the same job
    step_gaps: StepGaps | None = None  # None if only computing is judged

    @cached_property
    def has_tensor_ranks(self) -> bool:
        """Return whether the ranks of any tensor-parallel group recorded their collectives."""
        return has_tensor_ranks(self.observation.trace)

    @cached_property
    def group_waits(self) -> list[Waits]:
        """Return the waits of the tensor-parallel groups; empty if not recorded."""
        return measure_waits(self.observation) if self.has_tensor_ranks else []

    @cached_property
    def waiting(self) -> list[Waiting]:
        """Return the tensor-parallel groups that wait for a rank."""
        return waiting_groups(self.observation, self.group_waits)

    @cached_property
    def effects(self) -> Effects | None:
        """Return computing times split into effects; None if the stages are not `comparable`."""
        observation = self.observation
        if not observation.comparable:
            return None
        return split_effects(observation.passes, observation.memoize(some_lengths))

    @cached_property
    def past(self) -> Past | None:
        """Return the comparison with the job's earlier sessions; None without earlier sessions."""
        if not self.earlier:
            return None
        now = computing_of(self.observation, self.observation.memoize(slow_together).factor)
        return against_past(self.observation, now, self.earlier)

    @cached_property
    def stalled_launches(self) -> StalledLaunches | None:
        """Return the single forwards that launch late; None without a sign of pauses."""
        return stalled_launches(self.observation, self.step_ns)

    @cached_property
    def stage_or_worker(self) -> StageOrWorker:
        """Return the reason why a stage takes longest."""
        return tell_apart(self.observation, self.past)

    @property
    def slowness(self) -> Mapping[str, FloatArray] | None:
        """Return the slowness of each worker, as `Effects.worker`; None without peers."""
        if self.effects is not None:
            return self.effects.worker
        if self.observation.comparable_within_stages:
            return slowness_by_stage(self.observation)
        return None

    def net_of(self, explained: Explained) -> Signs:
        """Return the signs without the time that causes already explain."""
        return replace(self, observation=replace(self.observation, explained=explained))

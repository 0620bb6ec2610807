"""A session as all finders of causes use it, with stage imbalance told from slow workers.

With one DP rank a worker has no peers, but its stage has, where layers are divided evenly.
Embedding and head may make the first or last stage heavy; for these stages both causes are named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from app.analysis.diagnosis.earlier_sessions import EarlierSession, Past, against_past, computing_of
from app.analysis.diagnosis.finding import (
    Alternative,
    Change,
    Doubt,
    Evidence,
    Finding,
    StageLoad,
    Uncertainty,
)
from app.analysis.diagnosis.group_waits import (
    Waiting,
    has_tensor_ranks,
    measure_waits,
    waiting_groups,
)
from app.analysis.diagnosis.late_launches import StalledLaunches, stalled_launches
from app.analysis.diagnosis.locations import StageView, Where, WorkerView
from app.analysis.diagnosis.microbatch_effects import Effects, slowness_by_stage, split_effects
from app.analysis.diagnosis.observation import Explained, Observation, lower_median
from app.analysis.diagnosis.recorded_lengths import slow_together, some_lengths
from app.analysis.diagnosis.step_gaps import StepGaps
from app.analysis.replay.layout.dense import FloatArray, IntArray
from app.analysis.replay.robust_statistics import median
from app.analysis.trace.parallelism import layers_per_stage

# ---- Stages that have more to compute than the others, and workers whose stages are their peers --
# With one DP rank a worker has no peers, but its stage may: where layers are divided evenly, the
# other stages compute the same. Embedding and head lie on the first and the last stage, which may
# be heavy with as many layers as the others; of them both causes are said.


_HEAD: Final = "with one DP rank embedding or head may make this stage heavy"
_NO_LAYERS: Final = "with one DP rank nothing tells which, as the metadata say nothing of layers"
_NO_PEERS: Final = "one DP rank alone recorded this stage"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides whether a stage is heavy, or has a slow worker where it has no peers."""

    heavy: float = 1.03  # the heaviest stage is too heavy from this ratio to the mean of all on
    # A stage is slow, forward and backward, from this ratio to the median of the others on.
    slow: float = 1.04
    to_slowest: float = 0.25  # other stages are slow when their excess is this share of its
    alike: float = 1.5  # A slow worker's forward and backward excess differ by this factor at most.
    in_doubt: float = 0.85  # the highest confidence of what cannot be told from the other cause
    as_before: float = 0.95  # …and of a stage that took as long before
    one_session: float = 0.9  # …and of a slow worker whose past is a single session
    # Stages of an evenly divided model differ by up to this share, of which the interval is
    # made; replayed they are all the same.
    uneven: float = 0.004
    # A head costs up to this many layers (the paper, section 5.2, has one of over nine); an
    # embedding is looked up, which costs next to nothing.
    head_layers: int = 12


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class StageOrWorker:
    """What makes a stage take longest, in doubt where the other may be it.

    At most one of both, but where the job's past tells them apart.
    """

    heavy: Finding | None
    slow: Finding | None


def heaviest_stage(observation: Observation, slower: FloatArray | None = None) -> Finding | None:
    """Return the heaviest stage, where stages differ; without it all have the same to compute.

    `slower`, shape (pp,), is how many times as long a stage takes by its worker, where that is
    known.
    """
    if not observation.comparable:
        return None
    by_worker = 1.0 if slower is None else slower[:, None]
    # The median over the DP ranks, so that one slow worker does not make a heavy stage.
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
            # one array for all that change alike
            own = [np.asarray(value) for value in of_chunk]
            for node, chunk in zip(nodes.tolist(), passes.chunk.tolist(), strict=True):
                times[node] = own[chunk]
    return Finding(
        change=Change(times=times),
        evidence=(_evidence(levels, total, heaviest),),
        where=Where(stage=heaviest),
        figure=StageLoad(relative=tuple((total / np.mean(total)).tolist())),
        uncertainty=Uncertainty(THRESHOLDS.uneven),
    )


def _evidence(levels: dict[str, FloatArray], total: FloatArray, heaviest: int) -> Evidence:
    others = np.arange(len(total)) != heaviest
    against = {
        name.split("-")[0]: float(level.sum(axis=1)[heaviest] / median(level.sum(axis=1)[others]))
        for name, level in levels.items()
    }
    listed = ", ".join(f"{name} {ratio:.2f}×" for name, ratio in against.items())
    last = "The last stage" if heaviest == len(total) - 1 else f"Stage {heaviest}"
    return Evidence(
        f"{last} against the median of the other stages: {listed}, on every DP rank",
        StageView(pp=heaviest),
    )


def tell_apart(observation: Observation, past: Past | None = None) -> StageOrWorker:
    """Return the stage that takes longest, as too heavy or, with one DP rank, as a slow worker.

    With one DP rank the job's past tells, where it is known, who has become slow. A stage that took
    as long before is heavy, or its worker was slow then too.
    """
    heavy = heaviest_stage(observation)
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
    """Return what makes a stage take longest by what is known of its layers."""
    pp = observation.layout.pp
    if heavy is None or heavy.where.stage is None:
        return StageOrWorker(heavy, None)
    stage = heavy.where.stage
    if observation.layout.dp > 1:
        return StageOrWorker(_by_peers(observation, heavy, stage), None)
    layers = layers_per_stage(observation.trace.meta.extra, pp)
    ratio = _ratios(observation, np.array(layers or [1] * pp))
    slowness = np.min(list(ratio.values()), axis=0)
    most = np.max(list(ratio.values()), axis=0)[stage] - 1
    by_layers = slowness[stage] < THRESHOLDS.slow
    # A slow worker is slow at everything; a loss layer costs more forward than backward.
    if by_layers or most > THRESHOLDS.alike * (slowness[stage] - 1):
        # What its layers explain is sure.
        sure = bool(layers) and by_layers
        return StageOrWorker(heavy if sure else _doubted(heavy, stage, _HEAD), None)
    inner = np.arange(1, pp - 1)
    if stage not in inner:
        slow = _slow_workers(observation, ratio, np.array([stage]))
        return _at_an_end(heavy, slow, stage, layers, slowness[stage])
    excess = slowness - 1
    inner_slow = inner[
        (slowness[inner] >= THRESHOLDS.slow)
        & (excess[inner] >= THRESHOLDS.to_slowest * excess[stage])
    ]
    slow = _slow_workers(
        observation, ratio, inner_slow[np.argsort(-excess[inner_slow], kind="stable")]
    )
    if layers:
        return StageOrWorker(None, slow)
    return StageOrWorker(None, _doubted(slow, stage, _NO_LAYERS, heavy))


def _by_peers(observation: Observation, heavy: Finding, stage: int) -> Finding:
    """Return a heavy stage, in doubt where one DP rank alone recorded it."""
    absent = observation.layout.absent
    alone = absent is not None and int((~absent[:, stage]).sum()) == 1
    return _doubted(heavy, stage, _NO_PEERS) if alone else heavy


def _slower_than_before(observation: Observation, past: Past, beyond: FloatArray) -> Finding:
    """Return the workers of one DP rank that have become slower, over what the others have."""
    stages = np.flatnonzero(beyond > 1)
    # by type: what is held against the past is all that a worker computes
    ratio = dict.fromkeys(observation.passes, beyond)
    found = _slow_workers(observation, ratio, stages[np.argsort(-beyond[stages], kind="stable")])
    evidence = tuple(
        Evidence(
            f"{observation.hosts.subject((dp, stage))} computes {beyond[stage]:.2f}× as long as "
            f"in session {past.number}, over what the other stages do",
            WorkerView(dp=dp, pp=stage),
        )
        for dp, stage in found.where.workers
    )
    doubt = Doubt(THRESHOLDS.one_session) if past.sessions == 1 else None
    return replace(found, evidence=evidence, doubt=doubt)


def _as_before(found: StageOrWorker, past: Past) -> StageOrWorker:
    """Return a heavy stage with less doubt, as it took as long before."""
    heavy = found.heavy
    if heavy is None or heavy.doubt is None or heavy.where.stage is None:
        return found
    line = Evidence(
        f"Against the other stages it took as long in session {past.number}: no worker has become "
        "slow since",
        StageView(pp=heavy.where.stage),
    )
    doubt = Doubt(THRESHOLDS.as_before)
    return StageOrWorker(replace(heavy, evidence=(*heavy.evidence, line), doubt=doubt), None)


def _at_an_end(
    heavy: Finding, slow: Finding, stage: int, layers: tuple[int, ...] | None, slowness: float
) -> StageOrWorker:
    """Return both, what is likelier first: embedding or head may make the stage heavy."""
    if layers and (stage == 0 or (slowness - 1) * layers[stage] > THRESHOLDS.head_layers):
        return StageOrWorker(None, _doubted(slow, stage, _HEAD, heavy))
    return StageOrWorker(_doubted(heavy, stage, _HEAD, slow), None)


def _ratios(observation: Observation, layers: IntArray) -> dict[str, FloatArray]:
    """Return each stage's time a layer over the median of the others, by type, shape (pp,)."""
    ratios = {}
    for name, passes in observation.passes.items():
        rate = lower_median(passes.own_ns, axis=2).sum(axis=1) / layers
        others = [float(np.median(np.delete(rate, stage))) for stage in range(len(rate))]
        ratios[name] = rate / np.array(others)
    return ratios


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
    both = np.min(list(ratio.values()), axis=0)
    return Finding(
        change=Change(times=times),
        evidence=tuple(evidence),
        where=Where(workers=tuple((0, stage) for stage in stages.tolist()), stage=worst),
        figure=StageLoad(relative=tuple(both.tolist())),
        uncertainty=Uncertainty(THRESHOLDS.uneven),
    )


def _doubted(finding: Finding, stage: int, why: str, other: Finding | None = None) -> Finding:
    """Return a finding that may as well be another one."""
    line = Evidence(
        f"Uneven cost or a slow worker: {why}",
        StageView(pp=stage),
    )
    alternative = None if other is None else Alternative((*other.evidence, line), other.where)
    doubt = Doubt(THRESHOLDS.in_doubt, alternative)
    return replace(finding, evidence=(*finding.evidence, line), doubt=doubt)


# ---- A session as the finders of causes see it: observed, and taken apart where that can be done -


@dataclass(frozen=True, eq=False)
class Signs:
    """A session as the finders of causes see it."""

    observation: Observation
    step_ns: float  # the mean recorded step
    earlier: Sequence[EarlierSession] = ()  # of the same job
    step_gaps: StepGaps | None = None  # what passes between steps, where that is asked for

    @cached_property
    def has_tensor_ranks(self) -> bool:
        """Return whether any tensor-parallel group's ranks recorded their collectives."""
        return has_tensor_ranks(self.observation.trace)

    @cached_property
    def waiting(self) -> list[Waiting]:
        """Return the tensor-parallel groups that wait for their ranks; empty if not recorded."""
        if not self.has_tensor_ranks:
            return []
        return waiting_groups(self.observation, measure_waits(self.observation))

    @cached_property
    def effects(self) -> Effects | None:
        """Return computations taken apart; None where stages are not `comparable`."""
        observation = self.observation
        if not observation.comparable:
            return None
        return split_effects(observation.passes, observation.once(some_lengths))

    @cached_property
    def past(self) -> Past | None:
        """Return how the session compares with the job's past; None where it has none."""
        if not self.earlier:
            return None
        now = computing_of(self.observation, self.observation.once(slow_together).factor)
        return against_past(self.observation, now, self.earlier)

    @cached_property
    def stalled_launches(self) -> StalledLaunches | None:
        """Return the forwards whose launches stall, one here and one there."""
        return stalled_launches(self.observation, self.step_ns)

    @cached_property
    def stage_or_worker(self) -> StageOrWorker:
        """Return what makes a stage take longest."""
        return tell_apart(self.observation, self.past)

    @property
    def slowness(self) -> Mapping[str, FloatArray] | None:
        """Return what `Effects.worker` is; None where no worker can be held against its peers."""
        if self.effects is not None:
            return self.effects.worker
        if self.observation.comparable_within_stages:
            return slowness_by_stage(self.observation)
        return None

    def net_of(self, explained: Explained) -> Signs:
        """Return the signs that remain when some of the time is explained."""
        return replace(self, observation=replace(self.observation, explained=explained))

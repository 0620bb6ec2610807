"""Computing times of a job's earlier sessions as the baseline of a later session.

Within one session there is no baseline if all workers are slow, nor for a stage with one DP rank.
The baseline is the same worker with the same model and as many tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np

from app.analysis.budget.common_slowdown import CommonFactor
from app.analysis.diagnosis.observation import COMPUTATIONS, Observation
from app.analysis.diagnosis.recorded_lengths import computing_of_steps, some_lengths
from app.analysis.json_text import OMITTED
from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.replay.layout.dependency_graph import DP_COLLECTIVES, P2P
from app.analysis.replay.robust_statistics import median, median_of_rows
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.rank_metadata import Machine

# ---- What the workers of a session compute, for later sessions of the job to be held against ----


# Metadata of these steps, or of how they were sent: they say nothing of the job's configuration.
_OF_SESSION: Final = frozenset(
    {"sequence_lengths", "expert_tokens", "unmapped", "producers", "dropped_steps", "pause_s"}
)
# Workers that are enough to tell whether all of them are slow.
_MOST_WORKERS: Final = 64
# What moves data over the network in each step.
TRANSFERS: Final = frozenset({*DP_COLLECTIVES, *P2P})
_DIGEST: Final = 12
_DIGITS: Final = 7  # decimals of seconds


@dataclass(frozen=True, slots=True)
class Computing:
    """What workers compute in a step, for sessions that come later."""

    configuration: str
    """A digest of what must be alike for sessions to be compared: sizes, the operations of a step,
    metadata of the job."""
    every: int
    """Of how many DP ranks one is listed: at most 64 workers are."""
    step_s: tuple[tuple[float, ...], ...]
    """Seconds that a worker computes in the median one of its best steps, [DP rank][stage]."""
    machines: tuple[tuple[str, ...], ...]
    """Node and GPU of each, as far as they are known."""
    tokens: tuple[float, float] | None = field(default=None, metadata=OMITTED)
    """Σs and Σs² of the sequences of a mean step and DP rank, where they are recorded."""
    transfers_s: dict[str, tuple[float, ...]] = field(default_factory=dict, metadata=OMITTED)
    """Seconds that what moves data takes in the median step, without waiting for others, by
    operation type, [stage]; 0 on stages that have none of it."""


def computing_of(observation: Observation, factor: CommonFactor) -> Computing:
    """Return what the workers of a session compute, to be held against later."""
    layout, meta = observation.layout, observation.trace.meta
    every = -(-layout.dp * layout.pp // _MOST_WORKERS)
    best = observation.memoize(computing_of_steps)[:, factor.best, ::every]
    taken = median(best.swapaxes(0, 1)) / 1e9
    ranks = layout.ranks[::every].tolist()
    return Computing(
        configuration=configuration_of(meta, layout),
        every=every,
        step_s=tuple(map(tuple, np.round(taken.T, _DIGITS).tolist())),
        machines=tuple(tuple(_called(meta.machine(rank)) for rank in row) for row in ranks),
        tokens=_tokens(observation),
        transfers_s=_transfers(observation),
    )


def _transfers(observation: Observation) -> dict[str, tuple[float, ...]]:
    """Return what transfers of each type take in the median step on each stage, seconds.

    Without waiting for others, and on the median rank.
    """
    layout, recorded_ns = observation.layout, observation.recorded_ns
    names = [name for name in layout.op_names if name in TRANSFERS]
    found = [
        (name, stage, nodes)
        for name in names
        for stage in range(layout.pp)
        for nodes in [layout.of(name, stage)]
        if len(nodes)
    ]
    # neighbors: no copies; and one median of all, since calling costs more than computing
    sums = [recorded_ns[nodes[0] : nodes[-1] + 1].sum(axis=0).ravel() for _, _, nodes in found]
    typical = median_of_rows(np.array(sums)).tolist() if found else []
    taken: dict[str, list[float]] = {}
    for (name, stage, _), time_ns in zip(found, typical, strict=True):
        taken.setdefault(name, [0.0] * layout.pp)[stage] = round(time_ns / 1e9, _DIGITS)
    return {name: tuple(times) for name, times in taken.items()}


def configuration_of(meta: SessionMeta, layout: Layout) -> str:
    """Return a digest of what must be alike for sessions to be compared.

    Sizes, the operations of a step on each stage, and all metadata of the job that are not of its
    machines.
    """
    counts = [[len(layout.of(name, stage)) for stage in range(layout.pp)] for name in COMPUTATIONS]
    said = {key: value for key, value in meta.extra.items() if key not in _OF_SESSION}
    sizes = meta.sizes
    known = [sizes.dp, sizes.pp, sizes.tp, sizes.cp, sizes.vpp, sizes.world, counts, said]
    text = json.dumps(known, sort_keys=True, default=str)
    return sha256(text.encode()).hexdigest()[:_DIGEST]


def _called(machine: Machine) -> str:
    """Return a short name of a machine: its GPU's UUID, or else its node and what it calls it."""
    if machine.uuid:
        name = machine.uuid
    elif machine.node and not machine.guessed:
        name = f"{machine.node} {machine.gpu or ''}"
    else:
        return ""
    return f"{crc32(name.encode()):08x}"


def _tokens(observation: Observation) -> tuple[float, float] | None:
    lengths = observation.memoize(some_lengths) if observation.comparable else None
    if lengths is None or lengths.tokens.mean() <= 0:
        return None
    microbatches = observation.passes[COMPUTATIONS[0]].nodes.shape[1]
    return (
        float(lengths.tokens.mean()) * microbatches,
        float(lengths.squares.mean()) * microbatches,
    )


# ---- What workers computed in a job's earlier sessions, against which a later one is held ------
# Within a session nothing tells what all workers would take if none were slow, nor with one DP rank
# what a stage would. The same worker, with the same model and as many tokens, took it before.


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides whether a job is slower than it was."""

    slow: float = 0.05  # a worker is slower than before from this ratio on
    workers: float = 0.9  # …and all are when this share of those that are known is
    known: float = 0.5  # The same workers are this share of all at least.
    # The level of the past has this many sessions, where there are as many: one or two odd ones
    # were fast by accident.
    sessions: int = 3
    alike: float = 0.03  # sessions are at one level when they are this share apart
    # Sessions have as many tokens when Σs and Σs² differ by this share each; a few long sequences
    # weigh much in the squares, which are a part of the time.
    tokens: float = 0.02
    squares: float = 0.05
    # …and by this many times what sessions one after the other scatter by
    to_scatter: float = 4.0
    # What moves data is slower than before from this ratio on, as a link is than others.
    slow_transfers: float = 1.8
    # A worker is slow by itself where it is slower than before by this much more than the others.
    alone: float = 0.04
    # …and where all ranks share the processors of one host by this much.
    alone_on_shared: float = 0.15


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True)
class EarlierSession:
    """A session of the same job before this one."""

    number: int  # as people call it
    computing: Computing


class SlowTransfers(NamedTuple):
    """Transfers of a type and stage that take far longer than in the job's past."""

    times: float  # how many times as long
    number: int  # of the latest session that was far faster
    sessions: int  # that were


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """How a session compares with the job's past."""

    number: int  # of the latest session at the level that it is held against
    sessions: int  # at that level
    scatter: float  # what sessions one after the other scatter by
    # (pp, dp): how many times as long each worker computes as then; NaN where that is not known
    ratio: FloatArray
    # By operation type and stage, where transfers take far longer.
    slow_transfers: Mapping[tuple[str, int], SlowTransfers] = field(default_factory=dict)

    @property
    def times(self) -> float:
        """Return how many times as long the median worker computes."""
        return float(np.nanmedian(self.ratio))

    @property
    def all_slower(self) -> bool:
        """Return whether nearly all workers compute slower."""
        known = self.ratio[~np.isnan(self.ratio)]
        slow = 1 + max(THRESHOLDS.slow, THRESHOLDS.to_scatter * self.scatter)
        slower = float(np.mean(known >= 1 + THRESHOLDS.slow))
        return self.times >= slow and slower >= THRESHOLDS.workers

    def alone(self, *, shared: bool) -> FloatArray:
        """Return how much slower each worker is than then, over the others, shape (pp,).

        Of one DP rank whose workers are all known; 1 of those that are not slower by enough, which
        is more where ranks share processors.
        """
        own = self.ratio[:, 0]
        others = np.array([np.median(np.delete(own, stage)) for stage in range(len(own))])
        least = THRESHOLDS.alone_on_shared if shared else THRESHOLDS.alone
        beyond = own / others
        return np.where(beyond >= 1 + max(least, THRESHOLDS.to_scatter * self.scatter), beyond, 1.0)


def against_past(
    observation: Observation, now: Computing, earlier: Sequence[EarlierSession]
) -> Past | None:
    """Return how much slower workers compute than in the job's past; None where it has none.

    Sessions of another configuration or with other tokens are left out, and so are workers on other
    machines. The past is the fastest level that a few sessions had: those after a job has become
    slow do not hide it.
    """
    like = [one for one in earlier if _is_like(one.computing, now)]
    if not like:
        return None
    taken = np.array(now.step_s)
    ratios = np.array([_ratio(taken, now, one.computing) for one in like])
    known = ~np.isnan(ratios).all(axis=(1, 2))
    known[known] = np.mean(~np.isnan(ratios[known]), axis=(1, 2)) >= THRESHOLDS.known
    if not known.any():
        return None
    like = [one for one, usable in zip(like, known.tolist(), strict=True) if usable]
    ratios = ratios[known]
    slow = _slow_transfers(now, like)
    levels = np.nanmedian(ratios, axis=(1, 2))
    # The larger the ratio the faster the session was.
    level = float(np.sort(levels)[::-1][min(THRESHOLDS.sessions, len(levels)) - 1])
    at_level = np.abs(levels / level - 1) <= THRESHOLDS.alike
    found = _median_of_known(ratios[at_level])
    everywhere = np.full((observation.layout.pp, observation.layout.dp), np.nan)
    everywhere[:, :: now.every] = found.T
    numbers = [one.number for one, there in zip(like, at_level.tolist(), strict=True) if there]
    return Past(max(numbers), len(numbers), _scatter(levels), everywhere, slow)


def _slow_transfers(
    now: Computing, earlier: Sequence[EarlierSession]
) -> dict[tuple[str, int], SlowTransfers]:
    """Return what moves data far slower than then, by type and stage.

    Than in the fastest few sessions: those after the network became slow do not hide it.
    """
    slow = {}
    for name, by_stage in now.transfers_s.items():
        for stage, taken_s in enumerate(by_stage):
            then_s = {
                one.number: one.computing.transfers_s[name][stage]
                for one in earlier
                if name in one.computing.transfers_s
            }
            before = sorted(then for then in then_s.values() if then > 0)
            if not before:
                continue
            times = taken_s / before[min(THRESHOLDS.sessions, len(before)) - 1]
            if times < THRESHOLDS.slow_transfers:
                continue
            faster = [
                number
                for number, then in then_s.items()
                if 0 < then * THRESHOLDS.slow_transfers <= taken_s
            ]
            slow[name, stage] = SlowTransfers(times, max(faster), len(faster))
    return slow


def _median_of_known(ratios: FloatArray) -> FloatArray:
    """Return the median over the sessions, NaN for workers of which no session tells."""
    nothing = np.isnan(ratios).all(axis=0)
    filled = np.where(nothing, 1.0, ratios)
    return np.where(nothing, np.nan, np.nanmedian(filled, axis=0))


def _scatter(levels: FloatArray) -> float:
    """Return what the levels of neighboring sessions scatter by; 0 of too few."""
    if len(levels) <= THRESHOLDS.sessions:
        return 0.0
    return float(1.4826 / np.sqrt(2) * np.median(np.abs(np.diff(np.log(levels)))))


def _is_like(before: Computing, now: Computing) -> bool:
    if before.configuration != now.configuration or before.every != now.every:
        return False
    if (before.tokens is None) != (now.tokens is None):
        return False
    if before.tokens is None or now.tokens is None:
        return True
    apart = (abs(then / this - 1) for then, this in zip(before.tokens, now.tokens, strict=True))
    return all(a <= b for a, b in zip(apart, (THRESHOLDS.tokens, THRESHOLDS.squares), strict=True))


def _ratio(taken: FloatArray, now: Computing, before: Computing) -> FloatArray:
    """Return how many times as long each listed worker computes, NaN on another machine."""
    moved = np.array(
        [
            [bool(this and then) and this != then for this, then in zip(*rows, strict=True)]
            for rows in zip(now.machines, before.machines, strict=True)
        ]
    )
    then_s = np.array(before.step_s)
    return np.where(moved | (then_s <= 0), np.nan, taken / np.where(then_s > 0, then_s, 1.0))

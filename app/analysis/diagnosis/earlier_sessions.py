"""Computing times of a job's earlier sessions, the baseline of later sessions.

Within one session there is no baseline if all workers are slow, nor for a stage with one DP rank.
The baseline is the same worker with the same model and equally many tokens.
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
from app.analysis.quantities import FloatArray
from app.analysis.replay.layout.dense import (
    Layout,
)
from app.analysis.replay.layout.dependency_graph import DP_COLLECTIVES, P2P
from app.analysis.replay.robust_statistics import median, median_of_rows
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.rank_metadata import Machine

# Keys of metadata about single steps or their transport, which are not part of the job's
# configuration.
_OF_SESSION: Final = frozenset(
    {"sequence_lengths", "expert_tokens", "unmapped", "producers", "dropped_steps", "pause_s"}
)
_MOST_WORKERS: Final = 64  # enough to see whether all are slow
TRANSFERS: Final = frozenset({*DP_COLLECTIVES, *P2P})
_DIGEST: Final = 12  # hexadecimal digits
_DIGITS: Final = 7  # decimals of seconds


@dataclass(frozen=True, slots=True)
class Computing:
    """Computing times of the workers per step, kept for comparison with later sessions."""

    configuration: str
    """Digest of the properties that two sessions must share to be compared: sizes, operations of a
    step, and metadata of the job.
    """
    every: int
    """Interval between listed DP ranks: every n-th DP rank is listed, so that at most 64 workers
    are.
    """
    step_s: tuple[tuple[float, ...], ...]
    """Computing time of each worker in the median of its best steps, seconds, [DP rank][stage]."""
    machines: tuple[tuple[str, ...], ...]
    """Digest of the node and GPU of each worker, [DP rank][stage]; empty if unknown."""
    tokens: tuple[float, float] | None = field(default=None, metadata=OMITTED)
    """Σs and Σs² of the sequence lengths s of a mean step and DP rank; None if they are not
    recorded.
    """
    transfers_s: dict[str, tuple[float, ...]] = field(default_factory=dict, metadata=OMITTED)
    """Transfer time in the median step without waiting for other ranks, seconds, by operation type,
    [stage]; 0 on stages without transfers of the type.
    """


def computing_of(observation: Observation, factor: CommonFactor) -> Computing:
    """Return the computing times of a session, for comparison with later sessions."""
    layout, meta = observation.layout, observation.trace.meta
    every = -(-layout.dp * layout.pp // _MOST_WORKERS)
    best = observation.memoize(computing_of_steps)[:, factor.best, ::every]
    taken = median(best.swapaxes(0, 1)) / 1e9
    ranks = layout.ranks[::every].tolist()
    return Computing(
        configuration=configuration_of(meta, layout),
        every=every,
        step_s=tuple(map(tuple, np.round(taken.T, _DIGITS).tolist())),
        machines=tuple(tuple(_digest(meta.machine(rank)) for rank in row) for row in ranks),
        tokens=_tokens(observation),
        transfers_s=_transfers(observation),
    )


def _transfers(observation: Observation) -> dict[str, tuple[float, ...]]:
    """Return the transfer time of each type on each stage in the median step, seconds.

    The times are those of the median rank, without waits for other ranks.
    """
    layout, recorded_ns = observation.layout, observation.recorded_ns
    names = [name for name in layout.op_names if name in TRANSFERS]
    groups = [
        (name, stage, nodes)
        for name in names
        for stage in range(layout.pp)
        for nodes in [layout.of(name, stage)]
        if len(nodes)
    ]
    # The nodes of a type on a stage are consecutive, so slices avoid copies. All medians are
    # computed in one call, as a call costs more than the computation.
    sums = [recorded_ns[nodes[0] : nodes[-1] + 1].sum(axis=0).ravel() for _, _, nodes in groups]
    typical = median_of_rows(np.array(sums)).tolist() if groups else []
    taken: dict[str, list[float]] = {}
    for (name, stage, _), time_ns in zip(groups, typical, strict=True):
        taken.setdefault(name, [0.0] * layout.pp)[stage] = round(time_ns / 1e9, _DIGITS)
    return {name: tuple(times) for name, times in taken.items()}


def configuration_of(meta: SessionMeta, layout: Layout) -> str:
    """Return a digest of the properties that two sessions must share to be compared.

    The properties are the sizes, the numbers of computations of each stage, and the metadata of the
    job except those of its machines.
    """
    counts = [[len(layout.of(name, stage)) for stage in range(layout.pp)] for name in COMPUTATIONS]
    metadata = {key: value for key, value in meta.extra.items() if key not in _OF_SESSION}
    sizes = meta.sizes
    parts = [sizes.dp, sizes.pp, sizes.tp, sizes.cp, sizes.vpp, sizes.world, counts, metadata]
    text = json.dumps(parts, sort_keys=True, default=str)
    return sha256(text.encode()).hexdigest()[:_DIGEST]


def _digest(machine: Machine) -> str:
    """Return a digest of a GPU's UUID, or of its node and number; empty if unknown."""
    if machine.uuid:
        name = machine.uuid
    elif machine.node and not machine.guessed:
        name = f"{machine.node} {machine.gpu or ''}"
    else:
        return ""
    return f"{crc32(name.encode()):08x}"


def _tokens(observation: Observation) -> tuple[float, float] | None:
    """Return Σs and Σs², the mean over steps and DP ranks; None if lengths are not recorded."""
    lengths = observation.memoize(some_lengths) if observation.comparable else None
    if lengths is None or lengths.tokens.mean() <= 0:
        return None
    microbatches = observation.passes[COMPUTATIONS[0]].nodes.shape[1]
    return (
        float(lengths.tokens.mean()) * microbatches,
        float(lengths.squares.mean()) * microbatches,
    )


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide whether a job is slower than in earlier sessions."""

    slow: float = 0.05  # excess over earlier sessions from which a worker is slower
    workers: float = 0.9  # share of slower workers from which all count as slower
    same_machines: float = 0.5  # lowest share of workers on the same machines
    # Number of the fastest sessions that set the reference level, if the job has this number: one
    # or two sessions may have been fast by accident.
    sessions: int = 3
    alike: float = 0.03  # relative distance of sessions at one level
    # Sessions have equally many tokens when Σs and Σs² differ by at most these shares; a few long
    # sequences change Σs² much, but only part of the time depends on Σs².
    tokens: float = 0.02
    squares: float = 0.05
    # A job is slower when its excess is at least this many times the scatter of consecutive
    # sessions.
    to_scatter: float = 4.0
    slow_transfers: float = 1.8  # ratio of slow transfers, as for links
    # A single worker is slow if its slowdown exceeds the other workers' slowdown by this share …
    alone: float = 0.04
    # …or by this share if all ranks share the processors of one host.
    alone_on_shared: float = 0.15


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True)
class EarlierSession:
    """A session of the same job before the analyzed session."""

    number: int  # within the job, as pages show it
    computing: Computing


class SlowTransfers(NamedTuple):
    """Transfers of a type and stage that take far longer than in earlier sessions."""

    times: float  # ratio to the earlier ones
    number: int  # of the latest session that was far faster
    sessions: int  # number of sessions that were


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """Comparison of a session with the job's earlier sessions."""

    number: int  # of the latest session at the reference level
    sessions: int  # sessions at that level
    scatter: float  # standard deviation between consecutive sessions, of logarithms
    ratio: FloatArray  # (pp, dp): computing time of each worker ÷ earlier; NaN where unknown
    # transfers that are far slower than in earlier sessions, by operation type and stage
    slow_transfers: Mapping[tuple[str, int], SlowTransfers] = field(default_factory=dict)

    @property
    def times(self) -> float:
        """Return the median worker's computing time ÷ its time in the earlier sessions."""
        return float(np.nanmedian(self.ratio))

    @property
    def all_slower(self) -> bool:
        """Return whether nearly all workers compute slower than in the earlier sessions."""
        ratios = self.ratio[~np.isnan(self.ratio)]
        slow = 1 + max(THRESHOLDS.slow, THRESHOLDS.to_scatter * self.scatter)
        slower = float(np.mean(ratios >= 1 + THRESHOLDS.slow))
        return self.times >= slow and slower >= THRESHOLDS.workers

    def alone(self, *, shared: bool) -> FloatArray:
        """Return each worker's slowdown ÷ the other workers', shape (pp,), for one DP rank.

        The ratio is 1 for workers that are not slower by enough; the limit is higher if ranks share
        processors (`shared`). The times of all workers must be known.
        """
        own = self.ratio[:, 0]
        others = np.array([np.median(np.delete(own, stage)) for stage in range(len(own))])
        least = THRESHOLDS.alone_on_shared if shared else THRESHOLDS.alone
        beyond = own / others
        return np.where(beyond >= 1 + max(least, THRESHOLDS.to_scatter * self.scatter), beyond, 1.0)


def against_past(
    observation: Observation, now: Computing, earlier: Sequence[EarlierSession]
) -> Past | None:
    """Return the comparison with the job's earlier sessions; None if none is comparable.

    Sessions of another configuration or with other tokens are excluded, and so are workers on other
    machines. The reference is the fastest level of a few sessions: sessions after a job has become
    slow do not hide the slowdown.
    """
    like = [session for session in earlier if _is_like(session.computing, now)]
    if not like:
        return None
    ratios = np.array([_ratio(now, session.computing) for session in like])
    has_workers = ~np.isnan(ratios).all(axis=(1, 2))
    has_workers[has_workers] = (
        np.mean(~np.isnan(ratios[has_workers]), axis=(1, 2)) >= THRESHOLDS.same_machines
    )
    if not has_workers.any():
        return None
    like = [session for session, usable in zip(like, has_workers.tolist(), strict=True) if usable]
    ratios = ratios[has_workers]
    slow = _slow_transfers(now, like)
    levels = np.nanmedian(ratios, axis=(1, 2))
    # A ratio is the time now ÷ the earlier time: the largest ratios belong to the fastest sessions.
    level = float(np.sort(levels)[::-1][min(THRESHOLDS.sessions, len(levels)) - 1])
    at_level = np.abs(levels / level - 1) <= THRESHOLDS.alike
    # Median over the sessions; NaN for workers that no earlier session contains.
    nothing = np.isnan(ratios[at_level]).all(axis=0)
    medians = np.nanmedian(np.where(nothing, 1.0, ratios[at_level]), axis=0)
    ratio = np.full((observation.layout.pp, observation.layout.dp), np.nan)
    ratio[:, :: now.every] = np.where(nothing, np.nan, medians).T
    numbers = [
        session.number for session, chosen in zip(like, at_level.tolist(), strict=True) if chosen
    ]
    scatter = 0.0
    if len(levels) > THRESHOLDS.sessions:
        scatter = float(1.4826 / np.sqrt(2) * np.median(np.abs(np.diff(np.log(levels)))))
    return Past(max(numbers), len(numbers), scatter, ratio, slow)


def _slow_transfers(
    now: Computing, earlier: Sequence[EarlierSession]
) -> dict[tuple[str, int], SlowTransfers]:
    """Return the transfers far slower than in the fastest earlier sessions, by type and stage.

    As the fastest sessions are the reference, sessions recorded after the network became slow do
    not hide the slowdown.
    """
    slow = {}
    for name, by_stage in now.transfers_s.items():
        for stage, taken_s in enumerate(by_stage):
            then_s = {
                session.number: session.computing.transfers_s[name][stage]
                for session in earlier
                if name in session.computing.transfers_s
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


def _is_like(before: Computing, now: Computing) -> bool:
    """Return whether two sessions have the same configuration and equally many tokens."""
    if before.configuration != now.configuration or before.every != now.every:
        return False
    if (before.tokens is None) != (now.tokens is None):
        return False
    if before.tokens is None or now.tokens is None:
        return True
    apart = (abs(then / this - 1) for then, this in zip(before.tokens, now.tokens, strict=True))
    return all(a <= b for a, b in zip(apart, (THRESHOLDS.tokens, THRESHOLDS.squares), strict=True))


def _ratio(now: Computing, before: Computing) -> FloatArray:
    """Return each worker's computing time ÷ earlier time, (dp, pp); NaN on another machine."""
    moved = np.array(
        [
            [bool(this and then) and this != then for this, then in zip(*rows, strict=True)]
            for rows in zip(now.machines, before.machines, strict=True)
        ]
    )
    then_s = np.array(before.step_s)
    taken_s = np.array(now.step_s)
    return np.where(moved | (then_s <= 0), np.nan, taken_s / np.where(then_s > 0, then_s, 1.0))

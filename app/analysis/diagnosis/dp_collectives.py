"""Data-parallel collectives of each stage, and the DP ranks whose collectives are always slow.

Ranks of one group leave a collective together. If some ranks of a stage always leave later, the
stage has several groups (FSDP shards), one of them on a slow network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.diagnosis.finding import Evidence
from app.analysis.diagnosis.locations import StageView, Worker
from app.analysis.diagnosis.observation import Observation
from app.analysis.quantities import BoolArray, FloatArray
from app.analysis.replay.layout.dependency_graph import DP_COLLECTIVES
from app.analysis.replay.robust_statistics import median
from app.analysis.wording import name_list

# Transfers shorter than this duration are not compared, as clocks do not resolve them.
LEAST_NS: Final = 1e3


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide whether the network of some ranks of a stage is slow."""

    slow: float = 1.8  # ratio of slow collectives to the reference
    reference: float = 0.3  # quantile that is the reference, as half of a few may be slow
    fewest: int = 2  # slow ranks, and ranks that they are compared with


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class Collectives:
    """The collectives of each stage that has collectives; the first axis of arrays is the stage."""

    observation: Observation
    stages: tuple[int, ...]
    nodes: tuple[list[int], ...]
    # for each stage, (collectives, steps, dp): transfer times, ns, measured within each group
    taken_ns: tuple[FloatArray, ...]
    apart: BoolArray  # (stages, dp): ranks with slow collectives within their stage

    @property
    def by_step(self) -> FloatArray:
        """Return collective time ÷ ideal, shape (stages, steps), without the ranks of `apart`."""
        ratio = np.empty((len(self.stages), len(self.observation.layout.steps)))
        for index, nodes in enumerate(self.nodes):
            typical = self.observation.group.durations.ideal_ns[nodes]
            ratio[index] = self._others_ns(index).sum(axis=0) / max(float(typical.sum()), LEAST_NS)
        return ratio

    def each(self, index: int) -> FloatArray:
        """Return time ÷ ideal of each collective of a stage, shape (collectives, steps)."""
        typical = np.maximum(self.observation.group.durations.ideal_ns[self.nodes[index]], LEAST_NS)
        return np.asarray(self._others_ns(index) / typical[:, None])

    def _others_ns(self, index: int) -> FloatArray:
        taken_ns, apart = self.taken_ns[index], self.apart[index]
        return np.asarray(np.mean(taken_ns[:, :, ~apart] if apart.any() else taken_ns, axis=2))

    @property
    def incomplete(self) -> BoolArray:
        """Return which stages lack a rank for which the other ranks may wait, shape (stages,)."""
        absent = self.observation.layout.absent
        if absent is None:
            return np.zeros(len(self.stages), dtype=bool)
        return np.asarray(absent[:, self.stages].any(axis=0))

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Return the workers with slow collectives compared with other ranks of their stage."""
        return tuple((dp, self.stages[index]) for index, dp in np.argwhere(self.apart).tolist())

    def without(self, slow: BoolArray) -> dict[int, FloatArray]:
        """Return upper limits of transfers by node, (1, dp), ns: typical if slow, else infinite.

        Parameters
        ----------
        slow : bool array, shape (stages,)
            Stages whose collectives are slow on all ranks.
        """
        chosen = self.apart | slow[:, None]
        if not chosen.any():
            return {}
        op = self.observation.layout.nodes.op
        fast: dict[int, list[FloatArray]] = {}
        for nodes, taken_ns, ranks in zip(self.nodes, self.taken_ns, chosen, strict=True):
            for node, own_ns in () if ranks.all() else zip(nodes, taken_ns, strict=True):
                fast.setdefault(int(op[node]), []).append(own_ns[:, ~ranks].ravel())
        typical = typical_of(self.observation)
        typical |= {code: float(median(np.concatenate(parts))) for code, parts in fast.items()}
        return {
            node: np.where(ranks, typical[int(op[node])], np.inf)[None]
            for nodes, ranks in zip(self.nodes, chosen, strict=True)
            if ranks.any()
            for node in nodes
        }

    def evidence(self) -> list[Evidence]:
        """Return a sentence about the slow ranks of each stage that has slow ranks."""
        lines = []
        for stage, ranks, taken_ns in zip(self.stages, self.apart, self.taken_ns, strict=True):
            if ranks.any():
                who = name_list("DP rank", [str(dp) for dp in np.flatnonzero(ranks).tolist()])
                lines.append(
                    Evidence(
                        f"Collectives of {who} on stage {stage} take "
                        f"{_times(taken_ns, ranks):.1f}× as long as those of the other "
                        f"{int((~ranks).sum())}, step after step",
                        StageView(pp=stage),
                    )
                )
        return lines


def collectives_of(observation: Observation) -> Collectives:
    """Return the collectives over the DP ranks of each stage."""
    layout, nodes = observation.layout, observation.layout.nodes
    by_stage: dict[int, list[int]] = {}
    if layout.dp > 1:
        for unit in observation.group.graph.units:
            if unit.across_dp and len(unit.members) == 1:
                by_stage.setdefault(int(nodes.pp[unit.members[0]]), []).append(unit.members[0])
    stages = tuple(sorted(by_stage))
    of_stages = tuple(by_stage[stage] for stage in stages)
    measured = [_by_group(observation, members) for members in of_stages]
    apart = np.array([ranks for _, ranks in measured], dtype=bool).reshape(len(stages), layout.dp)
    return Collectives(observation, stages, of_stages, tuple(taken for taken, _ in measured), apart)


def _by_group(observation: Observation, nodes: list[int]) -> tuple[FloatArray, BoolArray]:
    """Return transfer times of a stage's collectives, ns, and the ranks whose group is slow.

    A group waits only for its own ranks: with several groups, a transfer begins at the latest start
    within the group.
    """
    layout, taken_ns = observation.layout, observation.recorded_ns[nodes]
    # A collective of the whole world has a single group, so it cannot show a slow group.
    mine = np.flatnonzero(layout.of_types(*DP_COLLECTIVES)[nodes])
    time_ns = median(taken_ns[mine].sum(axis=0))
    slow = time_ns > THRESHOLDS.slow * max(reference_of(time_ns), LEAST_NS)
    if min(slow.sum(), (~slow).sum()) < THRESHOLDS.fewest:
        slow[:] = False
    if layout.absent is not None and layout.absent[:, layout.nodes.pp[nodes[0]]].any():
        slow[:] = False
    if slow.any():
        own = np.array(nodes)[mine]
        start_ns, own_ns = layout.start_ns[own], taken_ns.copy()
        ends_ns = start_ns + layout.duration_ns[own]
        for ranks in (slow, ~slow):
            latest_ns = start_ns[:, :, ranks].max(axis=2, keepdims=True)
            own_ns[np.ix_(mine, np.arange(len(layout.steps)), ranks.nonzero()[0])] = np.maximum(
                ends_ns[:, :, ranks] - latest_ns, 0.0
            )
        if _times(own_ns[mine], slow) >= THRESHOLDS.slow:
            return own_ns, slow
    return taken_ns, np.zeros(layout.dp, dtype=bool)


def _times(taken_ns: FloatArray, ranks: BoolArray) -> float:
    """Return the collective time of some DP ranks ÷ the collective time of the other ranks."""
    time_ns = median(taken_ns.sum(axis=0))
    return float(time_ns[ranks].mean() / max(float(time_ns[~ranks].mean()), LEAST_NS))


def reference_of(ratio: FloatArray) -> float:
    """Return the reference ratio of links, stages or ranks: a low quantile, as half may be slow."""
    place = int(THRESHOLDS.reference * (ratio.size - 1))
    return float(np.partition(ratio, place, axis=None)[place])


def typical_of(observation: Observation) -> dict[int, float]:
    """Return the ideal duration of each type (median of all its transfers), by op code, ns."""
    op, ideal = observation.layout.nodes.op, observation.group.durations.ideal_ns
    return {int(code): float(ideal[op == code][0]) for code in np.unique(op)}

"""Network: transfers of some links take far longer than transfers of their type on other links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import CauseKind, Remedy
from app.analysis.diagnosis.dp_collectives import (
    LEAST_NS,
    Collectives,
    collectives_of,
    reference_of,
    typical_of,
)
from app.analysis.diagnosis.finding import (
    Cause,
    Change,
    Evidence,
    Finding,
    Launches,
    Links,
    Uncertainty,
)
from app.analysis.diagnosis.late_launches import unrecorded_reducing
from app.analysis.diagnosis.locations import (
    Hosts,
    JobFacts,
    LinkView,
    StageView,
    Where,
    Worker,
    WorkerView,
)
from app.analysis.diagnosis.network_baseline import HOW_OF_ALL, OF_ALL, slower_than_before
from app.analysis.diagnosis.observation import Observation
from app.analysis.diagnosis.session_view import Signs
from app.analysis.quantities import BoolArray, FloatArray, IntArray
from app.analysis.replay.layout.dependency_graph import P2P
from app.analysis.replay.robust_statistics import mean, median

Link = tuple[int, int]

# Fewest links that can be compared: a single link has no other link as a reference.
_COMPARABLE: Final = 2


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide whether links, or the collectives of stages, are slow."""

    slow: float = 1.8  # A link is slow from this ratio to the reference on.
    # The network of a job with one stage is unstable when it is slow in this share of the steps; by
    # chance it is slow in fewer steps.
    spells: float = 0.15
    # Half of the relative 95 % interval of the step time without the cause: the replay gives a slow
    # transfer the median duration of its type, but healthy transfers vary.
    unsure: float = 0.0006


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class _Links:
    """Pipeline links: one link for each pair of stages that exchange data."""

    ends: list[Link]  # the stages at both ends
    nodes: list[list[int]]  # their sends and receives
    ratio: FloatArray  # (links, dp): transfer time ÷ the median of its type


def _hides(signs: Signs) -> bool:
    """Return whether links, or the collectives of stages, differ in speed.

    If half of the links are slow, the ideal, a median, may be slow too.
    """
    observation = signs.observation
    links = _pipeline_links(observation)
    if links.ends and _beyond(links.ratio).any():
        return True
    if signs.past is not None and signs.past.slow_transfers:
        return True
    gathered = collectives_of(observation)
    several = len(gathered.stages) > 1
    return bool(gathered.apart.any()) or (several and bool(_slow_stages(gathered).any()))


def _find(signs: Signs) -> Finding | None:
    """Return the slow links; without the cause, transfers take the median time of other links."""
    observation = signs.observation
    links = _pipeline_links(observation)
    slow_links = _beyond(links.ratio) if links.ends else np.zeros((0, 1), bool)
    gathered = collectives_of(observation)
    slow_stages = (
        _slow_stages(gathered)
        if len(gathered.stages) > 1
        # With a single stage, the steps are compared with one another.
        else np.array(
            [_beyond(steps).mean() >= THRESHOLDS.spells for steps in gathered.by_step], dtype=bool
        )
        & ~gathered.incomplete
    )
    if not slow_links.any() and not slow_stages.any() and not gathered.apart.any():
        return None if signs.past is None else slower_than_before(observation, signs.past)
    transfers = {
        **_typical_transfers(observation, links, slow_links),
        **gathered.without(slow_stages),
    }
    slow_at = {gathered.stages[index] for index in np.flatnonzero(slow_stages).tolist()}
    shared = _at_fault(links, slow_links, slow_at, observation.layout.dp)
    workers = (*shared, *(worker for worker in gathered.workers if worker not in shared))
    where = Where(
        links=tuple((dp, *links.ends[index]) for index, dp in np.argwhere(slow_links).tolist()),
        workers=workers,
        stage=min(slow_at) if slow_at and not workers else None,
    )
    figure = None
    if links.ends:
        figure = Links(ends=tuple(links.ends), ratio=tuple(map(tuple, links.ratio.tolist())))
    ratio = dict(zip(gathered.stages, np.mean(gathered.by_step, axis=1).tolist(), strict=True))
    # An unrecorded gradient reduction takes the time from the last computation to the end of the
    # step; on slow stages its excess counts.
    waits = unrecorded_reducing(observation)
    others = [float(np.mean(wait)) for stage, (_, wait) in waits.items() if stage not in slow_at]
    late = {}
    if others and slow_at:
        typical = float(np.median(others))
        late = {
            node: np.maximum(wait - typical, 0.0)
            for stage, (node, wait) in waits.items()
            if stage in slow_at and float(np.mean(wait)) > THRESHOLDS.slow * typical
        }
    return Finding(
        change=Change(
            transfers_ns=transfers, on_time={node: late_ns > 0 for node, late_ns in late.items()}
        ),
        evidence=(
            *_evidence(observation, links, slow_links, slow_at, ratio, shared),
            *gathered.evidence(),
        ),
        where=where,
        figure=figure,
        launches=Launches(late),
        uncertainty=Uncertainty(THRESHOLDS.unsure),
    )


def _typical_transfers(
    observation: Observation, links: _Links, slow: BoolArray
) -> dict[int, FloatArray]:
    """Return upper limits of the transfer times of slow links, by node, shape (1, dp), ns.

    The limit is the median time on links that are not slow, and infinite on DP ranks whose link is
    not slow. Nodes of one type share an array, so that they are replaced together.
    """
    if not slow.any():
        return {}
    op = observation.layout.nodes.op.tolist()
    typical = _typical_elsewhere(observation, links, slow)
    transfers: dict[int, FloatArray] = {}
    for nodes, ranks in zip(links.nodes, slow, strict=True):
        if ranks.any():
            of_type = {
                code: np.where(ranks, typical[code], np.inf)[None]
                for code in dict.fromkeys(op[node] for node in nodes)
            }
            # Nodes are sorted by type, as consecutive nodes of one type are replaced in one
            # operation.
            in_order = sorted(nodes, key=op.__getitem__)
            transfers |= {node: of_type[op[node]] for node in in_order}
    return transfers


def _pipeline_links(observation: Observation) -> _Links:
    """Return the pipeline links and each link's slowness; empty if too few can be compared."""
    layout, nodes = observation.layout, observation.layout.nodes
    codes = {layout.op_names.index(name) for name in P2P if name in layout.op_names}
    op, stage = nodes.op.tolist(), nodes.pp.tolist()
    by_link: dict[Link, list[int]] = {}
    for unit in observation.group.graph.units:
        members = unit.members
        if len(members) > 1 and not unit.across_dp and op[members[0]] in codes:
            stages = [stage[node] for node in members]
            by_link.setdefault((min(stages), max(stages)), []).extend(members)
    ends = sorted(by_link)
    ratio = np.empty((len(ends), layout.dp))
    for index, link in enumerate(ends):
        transfers = np.array(by_link[link])
        typical = observation.group.durations.ideal_ns[transfers]
        taken = np.mean(observation.recorded_ns[transfers], axis=1)
        ratio[index] = mean(taken / np.maximum(typical, LEAST_NS)[:, None])
    if layout.absent is not None:
        # If a worker recorded nothing, the other worker's wait for it is unknown, so the transfer
        # time of the link is unknown too.
        unknown = np.array([layout.absent[:, link].any(axis=1) for link in ends], dtype=bool)
        if (~unknown).sum() < _COMPARABLE:
            return _Links([], [], ratio[:0])
        ratio[unknown] = reference_of(ratio[~unknown])
    return _Links(ends, [by_link[link] for link in ends], ratio)


def _typical_elsewhere(
    observation: Observation, links: _Links, slow: BoolArray
) -> dict[int, float]:
    """Return the median transfer time of each type on links that are not slow, by op code, ns.

    If half of the links are slow, the median of all links would lie between slow and fast. A type
    without a fast link gets the median of all links.
    """
    op, recorded = observation.layout.nodes.op, observation.recorded_ns
    fast: dict[int, list[tuple[IntArray, IntArray]]] = {}
    for nodes, slow_ranks in zip(links.nodes, slow, strict=True):
        types, ranks = op[nodes], np.flatnonzero(~slow_ranks)
        for code in np.unique(types).tolist() if len(ranks) else ():
            fast.setdefault(code, []).append((np.asarray(nodes)[types == code], ranks))

    def median_of(parts: list[tuple[IntArray, IntArray]]) -> float:
        chosen = [recorded[nodes][:, :, ranks].ravel() for nodes, ranks in parts]
        return float(median(np.concatenate(chosen)))

    return typical_of(observation) | {code: median_of(parts) for code, parts in fast.items()}


def _beyond(ratio: FloatArray) -> BoolArray:
    """Return which links or steps are slow, compared with a low quantile of all."""
    return np.asarray(ratio > THRESHOLDS.slow * reference_of(ratio))


def _slow_stages(gathered: Collectives) -> BoolArray:
    """Return which of several stages have slow collectives on all ranks, shape (stages,).

    At least two collectives of a stage must be slow: in few steps a single slow collective may be
    chance.
    """
    ratio = np.mean(gathered.by_step, axis=1)
    slow = _beyond(ratio) & ~gathered.apart.any(axis=1) & ~gathered.incomplete
    for index in np.flatnonzero(slow).tolist():
        slow[index] = (gathered.each(index) > THRESHOLDS.slow * reference_of(ratio)).sum() > 1
    return slow


def _at_fault(
    links: _Links, slow: BoolArray, slow_at: set[int], dp_ranks: int
) -> tuple[Worker, ...]:
    """Return the workers whose own network link is slow.

    A worker's slow network link slows all of the worker's transfers: with both neighbors, and in
    the collectives of its stage. At fault are the fewest workers that cover all slow pipeline links
    (greedy set cover).
    """
    at_fault: list[Worker] = []
    for dp in range(dp_ranks):
        uncovered = {
            index for index in range(len(links.ends)) if slow.shape[1] > dp and slow[index, dp]
        }
        while uncovered:
            scored = []
            for stage in sorted({stage for ends in links.ends for stage in ends}):
                own = {index for index, ends in enumerate(links.ends) if stage in ends}
                fast = sum(not slow[index, dp] for index in own)
                score = len(own & uncovered) - fast + (0.5 if stage in slow_at else 0.0)
                if own & uncovered:
                    scored.append((score, -stage, own))
            _, negative, own = max(scored, key=lambda item: item[:2])
            at_fault.append((dp, -negative))
            uncovered -= own
    return tuple(at_fault)


def _evidence(  # noqa: PLR0913, PLR0917 - the parts of the finding
    observation: Observation,
    links: _Links,
    slow: BoolArray,
    slow_at: set[int],
    collectives: dict[int, float],
    workers: tuple[Worker, ...],
) -> list[Evidence]:
    lines = []
    if slow.any():
        worst = np.unravel_index(np.argmax(np.where(slow, links.ratio, 0.0)), slow.shape)
        a, b = links.ends[int(worst[0])]
        dp, count = int(worst[1]), int(slow.sum())
        lines.append(
            Evidence(
                f"Transfers between stages {a} and {b} of DP rank {dp} take "
                f"{links.ratio[worst]:.1f}× the median of their type; "
                f"{count:,} of {slow.size:,} links {'is' if count == 1 else 'are'} slow",
                LinkView(dp=dp, from_=a, to=b),
            )
        )
    lines.extend(
        Evidence(
            f"Collectives over the DP ranks of stage {stage} take {collectives[stage]:.1f}× their "
            "type's median",
            StageView(pp=stage),
        )
        for stage in sorted(slow_at)
    )
    if workers:
        listed = ", ".join(observation.hosts.name_workers(worker) for worker in workers[:3])
        dp, pp = workers[0]
        lines.append(Evidence(f"What the slow links share: {listed}", WorkerView(dp=dp, pp=pp)))
    return lines


def _because(cause: Cause, job: JobFacts) -> str:
    workers = cause.where.workers
    if not workers:
        if cause.where.stage is None:
            return "the network of all ranks is slower than before"
        return f"the network of stage {cause.where.stage} is slow"
    if len(workers) > 1:
        return f"the network links of {len(workers)} workers are slow"
    return f"the network link of {job.name_workers(workers[0])} is slow"


def _remedy(cause: Cause, hosts: Hosts) -> Remedy:
    workers = cause.where.workers
    if not workers and cause.where.stage is None:
        return Remedy("repair_link", OF_ALL, HOW_OF_ALL)
    if not workers:
        what = f"network of stage {cause.where.stage}"
    else:
        what = f"link{'s' if len(workers) > 1 else ''} of {hosts.name_workers(*workers)}"
    return Remedy(
        "repair_link",
        f"Repair the {what}",
        "Replayed with its transfers at the median of their type.",
    )


NETWORK: Final = CauseKind(
    name="network",
    title="Network",
    word="network",
    sign="Transfers of some links, or the collectives of some stages or of some ranks of a stage, "
    "take far longer than those of the same type elsewhere.",
    blames_machine=True,
    cannot_judge=lambda signs: (
        "one worker has no transfers to compare"
        if signs.observation.trace.meta.sizes.workers == 1
        else None
    ),
    because=_because,
    find=_find,
    needs_own_devices=True,
    slows_ideal=_hides,
    remedy=_remedy,
    of_transfers=True,
    recurs=True,
)

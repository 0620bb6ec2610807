"""Expert-parallel imbalance: experts that receive more tokens than others delay their group.

A layer with experts has two all-to-alls, one to the experts and one back, and all ranks of the
group end each all-to-all together. The rank with the busiest experts arrives last at the second
all-to-all; at the first, all ranks arrive together unless a rank itself is slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import CauseKind, Phase, Remedy, always
from app.analysis.diagnosis.finding import Cause, Change, Evidence, Finding, Uncertainty
from app.analysis.diagnosis.group_waits import (
    LISTED,
    Waiting,
    Waits,
    computations_without,
    computing_ns,
    costs_enough,
    figure_of,
    unsure_of_typical,
)
from app.analysis.diagnosis.locations import FigureView, JobFacts, Where, Worker, WorkerView
from app.analysis.diagnosis.observation import COMPUTATIONS, Observation
from app.analysis.diagnosis.session_view import Signs
from app.analysis.quantities import BoolArray, FloatArray, IntArray
from app.analysis.trace.model import EXPERT_TYPES, Trace
from app.analysis.trace.parallelism import expert_ranks
from app.analysis.wording import percent

TOKENS_KEY: Final = "expert_tokens"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide whether groups wait for experts."""

    # The wait after the experts is at least this many times the wait before the experts: otherwise
    # a rank is late for another reason.
    to_before: float = 1.5
    # A rank is named when its experts cause this share of the group's waiting.
    same_rank: float = 0.6


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """A group of ranks that share experts, and the time that they wait for one another."""

    # waits at the all-to-alls after the experts, one entry for each worker of the group
    waiting: list[Waiting]
    share_before: float  # the wait before the experts, as a share of computing time

    @property
    def share(self) -> float:
        """Return the wait after the experts, as a share of computing time."""
        return self.waiting[0].share

    @property
    def by_rank(self) -> FloatArray:
        """Return the share of the waiting that each rank causes, shape (ranks,)."""
        return self.waiting[0].by_rank

    @property
    def slowest(self) -> Worker:
        """Return the worker whose experts take longest."""
        return self.waiting[int(np.argmax(self.by_rank))].cell

    @property
    def is_uneven(self) -> bool:
        """Return whether the wait for experts is longer than chance explains."""
        return costs_enough(self.share) and self.share >= THRESHOLDS.to_before * self.share_before


def _is_recorded(trace: Trace) -> bool:
    return bool(_all_to_alls(trace).any())


def _all_to_alls(trace: Trace) -> BoolArray:
    return np.isin(trace.op, [trace.op_names.index(name) for name in EXPERT_TYPES])


def _groups(observation: Observation) -> list[_Group]:
    """Return the groups of ranks that share experts, the longest wait first."""
    trace = observation.trace
    size = expert_ranks(trace)
    if size is None or size == 1 or not _is_recorded(trace):
        return []
    rows = np.flatnonzero(_all_to_alls(trace))
    rows = rows[np.isin(trace.step[rows], observation.layout.steps)]
    analyzed = np.asarray(observation.layout.ranks)[trace.dp[rows], trace.pp[rows]]
    rows = rows[trace.rank[rows] == analyzed]
    group = trace.pp[rows].astype(np.int64) * trace.meta.sizes.dp + trace.dp[rows] // size
    keys = (trace.dp[rows], trace.order[rows], trace.step[rows], group)
    in_order = np.lexsort(keys)
    rows, group = rows[in_order], group[in_order]
    computing = np.flatnonzero(
        np.isin(trace.op, [trace.op_names.index(name) for name in COMPUTATIONS])
    )
    computing = computing[np.lexsort((trace.start_ns[computing], trace.rank[computing]))]
    ranks, first = np.unique(trace.rank[computing], return_index=True)
    begins_ns = np.split(trace.start_ns[computing], first[1:])
    computations_ns = dict(zip(ranks.tolist(), begins_ns, strict=True))
    total_ns = computing_ns(observation)
    groups = [
        _group(trace, mine, size, total_ns, computations_ns)
        for mine in np.split(rows, np.flatnonzero(np.diff(group)) + 1)
    ]
    measured = [group for group in groups if group is not None]
    return sorted(measured, key=lambda group: -group.share)


def _group(
    trace: Trace,
    rows: IntArray,
    size: int,
    total_ns: FloatArray,
    computations_ns: Mapping[int, IntArray],
) -> _Group | None:
    """Return a group with its waits; None if too few of its all-to-alls are recorded.

    Parameters
    ----------
    rows : IntArray
        Its all-to-alls, sorted by step, order and DP rank.
    size : int
        Ranks of the group.
    total_ns : FloatArray
        Computing time of each worker, shape (pp, dp).
    computations_ns : mapping of int to IntArray
        Start times of each rank's computations, ascending.
    """
    if not len(rows):
        return None
    step, order = trace.step[rows], trace.order[rows]
    first = np.flatnonzero(np.concatenate([[True], (np.diff(step) != 0) | (np.diff(order) != 0)]))
    # Collectives that lack a rank's record are not counted.
    first = first[np.diff(np.append(first, len(rows))) == size]
    if not len(first):
        return None
    table = rows[first[:, None] + np.arange(size)]
    duration_ns = trace.duration_ns[table].astype(np.float64)
    # If tokens were spread evenly, the experts of every rank would take the mean time.
    beyond_ns = duration_ns.mean(axis=1) - duration_ns.min(axis=1)
    after = trace.order[table[:, 0]] % 2 == 1
    cells = [(int(trace.dp[row]), int(trace.pp[row])) for row in table[0].tolist()]
    computing = float(np.mean([total_ns[pp, dp] for dp, pp in cells]))
    share, before = (float(beyond_ns[part].sum()) / computing for part in (after, ~after))
    if not 0 < share < 1:
        return None
    ranks, last = trace.rank[table[0]].astype(np.int64), duration_ns.argmin(axis=1)[after]
    even_ns = _even_wait_ns(trace, table, [computations_ns[rank] for rank in ranks.tolist()])
    typical = before if even_ns is None else even_ns / computing
    by_rank = np.bincount(last, weights=beyond_ns[after], minlength=size)
    return _Group(
        waiting=[
            Waiting(
                Waits(
                    cell=cell,
                    ranks=ranks,
                    step=trace.step[table[after, 0]],
                    start_ns=trace.start_ns[table[after, place]],
                    wait_ns=beyond_ns[after],
                    last=last,
                    duration_ns=duration_ns[after],
                ),
                share,
                by_rank / by_rank.sum(),
                typical=typical / (1 - share),
                typical_known=True,
            )
            for place, cell in enumerate(cells)
        ],
        share_before=before,
    )


def _even_wait_ns(
    trace: Trace, table: IntArray, computations_ns: Sequence[IntArray]
) -> float | None:
    """Return an estimate of the total wait after experts that all receive equally many tokens, ns.

    The estimate is the ranks' differences in computing before the experts, scaled by the experts'
    share of the time: a late start, or a weight gradient since the last all-to-all, does not
    lengthen the experts. None if too little is recorded. `table` are the rows of the group's
    all-to-alls, sorted by step and order, shape (collectives, ranks); `computations_ns` are the
    start times of each rank's computations.
    """
    step, order = trace.step[table[:, 0]], trace.order[table[:, 0]]
    follows = (np.diff(step) == 0) & (np.diff(order) == 1)
    after = 1 + np.flatnonzero(follows & (order[1:] % 2 == 1))
    start_ns = trace.start_ns[table]
    end_ns = start_ns + trace.duration_ns[table]
    experts_ns = np.maximum(start_ns[after] - end_ns[after - 1], 0)
    # Start of the computation that contains each all-to-all, by each rank's own clock.
    begin_ns = np.stack(
        [
            began_ns[np.maximum(np.searchsorted(began_ns, own_ns, side="right") - 1, 0)]
            for own_ns, began_ns in zip(start_ns[after - 1].T, computations_ns, strict=True)
        ],
        axis=1,
    )
    # The second and later layers of a computation begin when the previous layer ends.
    later = (after > 1) & follows[after - 2]
    begin_ns[later] = np.maximum(begin_ns[later], end_ns[after - 2][later])
    computed_ns = np.maximum(start_ns[after - 1] - begin_ns, 0)
    if not computed_ns.sum():
        return None
    differ_ns = computed_ns.max(axis=1) - computed_ns.mean(axis=1)
    return float(differ_ns.sum() * experts_ns.sum() / computed_ns.sum())


def _find(signs: Signs) -> Finding | None:
    """Return the groups that wait for experts; without the cause all experts take equally long."""
    observation = signs.observation
    every = _groups(observation)
    groups = [group for group in every if group.is_uneven]
    if not groups:
        return None
    # A router that spreads tokens evenly also removes the waits of groups that wait little.
    everybody = [waiting for group in every for waiting in group.waiting]
    same = [group for group in groups if float(group.by_rank.max()) >= THRESHOLDS.same_rank]
    workers = tuple(group.slowest for group in same)
    ranks = observation.hosts.ranks
    evidence = [
        Evidence(
            _sign(group),
            WorkerView(dp=group.slowest[0], pp=group.slowest[1]) if number else FigureView(),
        )
        for number, group in enumerate(groups[:LISTED])
    ]
    return Finding(
        change=Change(less_ns=computations_without(observation, everybody)),
        evidence=(*evidence, *_tokens(observation, groups)),
        where=Where(
            workers=workers,
            ranks=tuple(ranks[dp][pp] for dp, pp in workers),
            stages=tuple(sorted({group.slowest[1] for group in groups})),
        ),
        figure=figure_of(groups[0].waiting[0]),
        uncertainty=Uncertainty(
            unsure_of_typical(everybody[0].typical, len(every)),
            # The cause keeps all ranks of a group waiting except the rank with the slowest experts,
            # and only after the experts: before the experts the group waits for late launches with
            # and without the cause.
            hiding=(1 - len(every) / len(everybody)) / 2,
        ),
    )


def _sign(group: _Group) -> str:
    (first, stage), (last, _) = group.waiting[0].cell, group.waiting[-1].cell
    dp, pp = group.slowest
    return (
        f"DP ranks {first} to {last} of stage {stage} share experts: they wait "
        f"{percent(group.share, 0)} of their computing time for one another after the experts, "
        f"{percent(group.share_before, 0)} before them; most for ({dp}, {pp}), "
        f"{percent(float(group.by_rank.max()), 0)} of it"
    )


def _tokens(observation: Observation, groups: Sequence[_Group]) -> list[Evidence]:
    """Return the evidence about the tokens of the slowest group, if the metadata contain tokens."""
    given = observation.trace.meta.extra.get(TOKENS_KEY)
    if not isinstance(given, Mapping):
        return []
    cells = [waiting.cell for waiting in groups[0].waiting]
    steps = [given.get(str(step), given.get(step)) for step in observation.layout.steps.tolist()]
    ranks = observation.hosts.ranks
    sent = np.array([[_sent_tokens(step, cell, ranks) for cell in cells] for step in steps])
    sent = sent[np.isfinite(sent).all(axis=1)]
    if not len(sent) or sent.mean() <= 0:
        return []
    share = sent.sum(axis=0) / sent.sum()
    most = int(np.argmax(share))
    dp, pp = cells[most]
    uneven = float((sent.max(axis=1) / sent.mean(axis=1)).mean())
    return [
        Evidence(
            f"The experts of ({dp}, {pp}) are sent {percent(float(share[most]), 0)} of the tokens "
            f"of their {len(cells)} ranks; in a step the most that one is sent is {uneven:.2f}× "
            "the mean",
            WorkerView(dp=dp, pp=pp),
        )
    ]


def _sent_tokens(step: object, cell: Worker, ranks: Sequence[Sequence[int]]) -> float:
    """Return the number of tokens of a worker in a step; NaN if the metadata give no number.

    The metadata contain tokens as [dp][pp] if one rank reports for all ranks, or by rank if each
    rank reports its own tokens.
    """
    dp, pp = cell
    try:
        if isinstance(step, Mapping):
            return float(step[str(ranks[dp][pp])])
        return float(step[dp][pp])  # type: ignore[index]
    except (TypeError, ValueError, IndexError, KeyError):
        return float("nan")


def _cannot_judge(signs: Signs) -> str | None:
    trace = signs.observation.trace
    size, recorded = expert_ranks(trace), _is_recorded(trace)
    if recorded and size is None:
        return "the metadata do not name the expert-parallel size (`ep`), of which DP is a multiple"
    if size is not None and size > 1 and not recorded:
        return "no expert-parallel operations recorded"
    return None


def _because(cause: Cause, job: JobFacts) -> str:
    workers = cause.where.workers
    if not workers:
        return "ranks wait for one another's experts, as tokens are spread unevenly"
    more = f" and {len(workers) - 1} more" if len(workers) > 1 else ""
    return f"the experts of {job.name_workers(workers[0])}{more} are sent more tokens than others"


EXPERT_PARALLEL: Final = CauseKind(
    name="expert_parallel_imbalance",
    title="Expert-parallel imbalance",
    word="experts",
    sign="Ranks that share experts wait for one another at the all-to-alls after the experts, and "
    "not at those before them.",
    blames_machine=False,
    cannot_judge=_cannot_judge,
    because=_because,
    find=_find,
    of_rank_groups=True,
    # If all groups wait, the ideal durations contain the wait too.
    slows_ideal=lambda signs: any(group.is_uneven for group in _groups(signs.observation)),
    remedy=always(
        Remedy(
            "balance_experts",
            "Spread tokens evenly over the experts",
            "Replayed with the experts of all ranks of a group taking what they take on average: a "
            "stronger balancing loss or bias in the router, a capacity for each expert, or other "
            "places for those that are sent most.",
        )
    ),
    phase=Phase.WITHIN_WORKERS,
)

"""Network congestion: all links are slow in the same steps, as other jobs use the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import CauseKind, Remedy, always
from app.analysis.diagnosis.finding import (
    Alternative,
    Cause,
    Change,
    Doubt,
    Evidence,
    Finding,
    Launches,
    TransferLevels,
)
from app.analysis.diagnosis.late_launches import unrecorded_reducing
from app.analysis.diagnosis.locations import FigureView, JobFacts, SlowSpells, StepView, Where
from app.analysis.diagnosis.observation import Observation
from app.analysis.diagnosis.session_view import Signs
from app.analysis.quantities import BoolArray, FloatArray
from app.analysis.replay.layout.dependency_graph import P2P
from app.analysis.replay.robust_statistics import median
from app.analysis.wording import percent

# Approximate number of transfers of one link and type that is enough to measure it.
_SAMPLE: Final = 12
# Transfers shorter than this duration are not compared, as clocks do not resolve them.
_LEAST_NS: Final = 1e3
_NAMED: Final = 3

# Carrier of transfers: the stages at both ends of a link (the same stage twice for a collective),
# and the op code of the transfers (for a send and its receive, the lower op code).
_Carrier = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide whether all links are slow at once in some steps."""

    slow: float = 1.8  # A step is slow from this ratio of transfer times to the quietest steps on.
    quiet: float = 1.2  # A step is quiet below this ratio.
    fewest: int = 2  # fewest slow steps, and fewest quiet ones
    enough_steps: int = 8  # fewer steps do not show spells
    quietest: float = 0.1  # quantile of the quietest steps
    nearly_all: float = 0.9  # share of the links that are slow in the same steps
    together: float = 1.4  # A link is slow with the others from this ratio to its quiet steps on.
    # Highest confidence if the job has a single link: this link itself may be slow.
    in_doubt: float = 0.8


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class _Traffic:
    """The transfers between stages, or the collectives, of a job."""

    # groups of nodes that transfer the same data, by carrier
    units: Mapping[_Carrier, list[tuple[int, ...]]]
    # (lines, steps): transfer time ÷ transfer time of the median step; a line is a link of a DP
    # rank, or the collectives of a stage
    level: FloatArray
    by_step: FloatArray  # (steps,): level of the median line ÷ that in the quietest steps

    @property
    def slow(self) -> BoolArray:
        """Return the steps in which transfers are slow, shape (steps,)."""
        return np.asarray(self.by_step >= THRESHOLDS.slow)

    @property
    def quiet(self) -> BoolArray:
        """Return the steps in which only the job itself uses the network, shape (steps,)."""
        return np.asarray(self.by_step < THRESHOLDS.quiet)

    @property
    def by_spells(self) -> bool:
        """Return whether the job has both slow steps and quiet steps."""
        return bool(min(self.slow.sum(), self.quiet.sum()) >= THRESHOLDS.fewest)

    @property
    def everywhere(self) -> bool:
        """Return whether nearly all lines are slow in the same steps."""
        typical = np.median(self.level[:, self.quiet], axis=1, keepdims=True)
        return bool(
            ((self.level / typical)[:, self.slow] >= THRESHOLDS.together).mean()
            >= THRESHOLDS.nearly_all
        )


def _congested(observation: Observation) -> list[_Traffic]:
    """Return the kinds of transfers (between stages, collectives) that congestion slows."""
    layout = observation.layout
    if layout.pp == 1 or len(layout.steps) < THRESHOLDS.enough_steps:
        return []
    links, collectives = _carriers(observation)
    families = (
        _traffic(observation, links, by_rank=True),
        _traffic(observation, collectives, by_rank=False),
    )
    return [family for family in families if family.by_spells and family.everywhere]


def _carriers(
    observation: Observation,
) -> tuple[dict[_Carrier, list[tuple[int, ...]]], dict[_Carrier, list[tuple[int, ...]]]]:
    """Return the groups of nodes that transfer the same data, for links and for collectives."""
    layout, nodes = observation.layout, observation.layout.nodes
    between = {layout.op_names.index(name) for name in P2P if name in layout.op_names}
    op, stage = nodes.op.tolist(), nodes.pp.tolist()
    links: dict[_Carrier, list[tuple[int, ...]]] = {}
    collectives: dict[_Carrier, list[tuple[int, ...]]] = {}
    for unit in observation.group.graph.units:
        members = unit.members
        if not unit.communication:
            continue
        if op[members[0]] in between:
            if len(members) > 1:
                ends = sorted(stage[node] for node in members)
                code = min(op[node] for node in members)
                links.setdefault((ends[0], ends[-1], code), []).append(members)
        elif unit.across_dp and len(members) == 1:
            place = stage[members[0]]
            collectives.setdefault((place, place, op[members[0]]), []).append(members)
    return links, collectives


def _traffic(
    observation: Observation,
    units: Mapping[_Carrier, list[tuple[int, ...]]],
    *,
    by_rank: bool,
) -> _Traffic:
    """Return each step's transfer slowness; with `by_rank`, each DP rank has its own links."""
    steps = len(observation.layout.steps)
    if not units:
        return _Traffic(units, np.ones((0, steps)), np.ones(steps))
    some = {
        carrier: [members[0] for members in moved[:: max(1, len(moved) // _SAMPLE)]]
        for carrier, moved in units.items()
    }
    every = list(chain.from_iterable(some.values()))
    taken = np.maximum(observation.recorded_ns[every], _LEAST_NS)
    if not by_rank:
        taken = taken.mean(axis=2, keepdims=True)
    # Each transfer is compared with its own median over the steps, as gradient buckets and
    # directions differ in size.
    ratio = taken / median(taken.swapaxes(0, 1))[:, None]
    by_line: dict[tuple[int, int], list[FloatArray]] = {}
    first = 0
    for (low, high, _), nodes in some.items():
        by_line.setdefault((low, high), []).append(ratio[first : first + len(nodes)])
        first += len(nodes)
    level = np.concatenate([median(np.concatenate(r)).T for r in by_line.values()])
    by_step = median(level)
    quietest = float(np.sort(by_step)[int(THRESHOLDS.quietest * (steps - 1))])
    return _Traffic(units, level, by_step / quietest)


def _find(signs: Signs) -> Finding | None:
    """Return the slow steps; without the cause transfers take as long as in the quiet steps."""
    observation = signs.observation
    families = _congested(observation)
    if not families:
        return None
    by_step = np.max([family.by_step for family in families], axis=0)
    slow = by_step >= THRESHOLDS.slow
    # A step counts as quiet only if all kinds of transfers are quiet in it.
    busy = by_step >= THRESHOLDS.quiet
    links, collectives = _carriers(observation)
    transfers: dict[int, FloatArray] = {}
    for units in (links, collectives):
        for moved in units.values():
            transfers.update(_as_when_quiet(observation, moved, slow, busy))
    # An unrecorded gradient reduction takes the time from the last computation to the end of the
    # step; in busy steps its excess counts.
    late = {}
    for node, wait in unrecorded_reducing(observation).values():
        typical = float(np.median(wait[~busy]))
        if np.mean(wait[slow]) >= THRESHOLDS.together * typical:
            late[node] = np.where(busy[:, None], np.maximum(wait - typical, 0.0), 0.0)
    times = float(np.mean(by_step[slow]))
    return Finding(
        change=Change(
            transfers_ns=transfers, on_time={node: late_ns > 0 for node, late_ns in late.items()}
        ),
        evidence=tuple(_evidence(observation, families, by_step)),
        where=Where(spells=SlowSpells(steps=int(slow.sum()), of=len(slow), times=times)),
        figure=TransferLevels(by_step=tuple(by_step.tolist())),
        launches=Launches(late),
        # If the job has a single link, this link itself may be slow.
        doubt=None
        if len(families) > 1 or len(families[0].level) > 1
        else Doubt(THRESHOLDS.in_doubt, Alternative()),
    )


def _as_when_quiet(
    observation: Observation,
    moved: list[tuple[int, ...]],
    slow: BoolArray,
    busy: BoolArray,
) -> dict[int, FloatArray]:
    """Return a carrier's quiet transfer times for busy steps, by node, shape (steps, dp), ns.

    Times are infinite in quiet steps; empty if the carrier is not slower in slow steps.
    """
    some = [members[0] for members in moved[:: max(1, len(moved) // _SAMPLE)]]
    taken = observation.recorded_ns[some]
    typical = np.median(taken[:, ~busy], axis=(0, 1))
    if np.median(taken[:, slow]) < THRESHOLDS.together * max(float(np.median(typical)), _LEAST_NS):
        return {}
    # All nodes share one array, which saves memory.
    without = np.where(busy[:, None], np.maximum(typical, 0.0)[None, :], np.inf)
    return {node: without for members in moved for node in members}


def _evidence(
    observation: Observation, families: list[_Traffic], by_step: FloatArray
) -> list[Evidence]:
    slow = by_step >= THRESHOLDS.slow
    quiet = int((by_step < THRESHOLDS.quiet).sum())
    lines = []
    for family in families:
        between = any(low != high for low, high, _ in family.units)
        count = len(family.level)
        what = f"Transfers on {count:,} links" if between else f"Collectives of {count} stages"
        if count == 1:
            what = "Transfers between the stages"
        lines.append(
            Evidence(
                f"{what} take {np.mean(family.by_step[slow]):.1f}× what they take in the {quiet} "
                f"quiet steps, all at once in {int(slow.sum())} of {len(slow)}",
                FigureView(),
            )
        )
    steps = observation.layout.steps
    worst = int(np.argmax(by_step))
    edges = np.flatnonzero(np.diff(np.concatenate([[False], slow, [False]]).astype(np.int8)))
    spells = edges.reshape(-1, 2).tolist()  # first step, and the one after the last
    listed = ", ".join(_spell(observation, *spell) for spell in spells[:_NAMED])
    more = f" and {len(spells) - _NAMED} more" if len(spells) > _NAMED else ""
    lines.append(Evidence(f"They are slow in {listed}{more}", StepView(step=int(steps[worst]))))
    return lines


def _spell(observation: Observation, begin: int, end: int) -> str:
    """Name a run of steps, with its time of day if absolute clocks are recorded."""
    trace, (first, last) = observation.trace, observation.layout.steps[[begin, end - 1]].tolist()
    name = f"step {first}" if first == last else f"steps {first} to {last}"
    if trace.step_relative:
        return name
    since, until = (
        datetime.fromtimestamp(int(trace.start_ns[trace.step == step].min()) // 10**9, tz=UTC)
        .time()
        .isoformat("seconds")
        for step in (first, last)
    )
    return f"{name} ({since} UTC)" if since == until else f"{name} ({since} to {until} UTC)"


def _cannot_judge(signs: Signs) -> str | None:
    layout = signs.observation.layout
    if layout.pp == 1 or len(layout.steps) >= THRESHOLDS.enough_steps:
        return None
    return (
        f"fewer than {THRESHOLDS.enough_steps} steps, in which spells of other traffic do not show"
    )


def _because(cause: Cause, job: JobFacts) -> str:  # noqa: ARG001 - no place is named
    spells = cause.where.spells
    when = f" in {percent(spells.steps / spells.of, 0)} of the steps" if spells else ""
    return f"the whole network is slow{when}, as with traffic of others"


NETWORK_CONGESTION: Final = CauseKind(
    name="network_congestion",
    title="Network congestion",
    word="traffic",
    sign="Transfers on all links, or the collectives of all stages, are slow at once by spells of "
    "steps.",
    blames_machine=False,
    cannot_judge=_cannot_judge,
    because=_because,
    find=_find,
    needs_own_devices=True,
    # If most steps are slow, the ideal durations, which are medians, are slow too.
    slows_ideal=lambda signs: bool(_congested(signs.observation)),
    remedy=always(
        Remedy(
            "separate_traffic",
            "Keep other traffic away from the job's",
            "Replayed with all transfers as in the quiet steps: other jobs and the writing of data "
            "on other links, in a lower class of service, or at another time. The times of the "
            "slow steps tell whose traffic it is.",
        )
    ),
    of_transfers=True,
    over_steps=True,
)

"""Steps in which all links are slow at once: others use the network, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

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
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.layout.dependency_graph import P2P
from app.analysis.replay.robust_statistics import median
from app.analysis.wording import percent

# Transfers of a link and type that tell what it does in a step.
_SAMPLE: Final = 12
# Transfers shorter than clocks resolve are not compared.
_LEAST_NS: Final = 1e3
_NAMED: Final = 3

# What carries transfers: the stages at both ends of a link, or the stage of a collective; and
# their type, of a send and its receive that of one of them.
_Carrier = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides whether all links are slow at once in some steps."""

    slow: float = 1.8  # transfers are slow in a step from this ratio to the quietest steps on
    quiet: float = 1.2  # A step is quiet below this ratio.
    fewest: int = 2  # steps that must be slow, and that must be quiet
    enough_steps: int = 8  # in fewer steps spells cannot be told
    quietest: float = 0.1  # the quietest steps are this quantile of all
    nearly_all: float = 0.9  # nearly all links are slow at once when this share of them is
    together: float = 1.4  # A link is slow with the others from this ratio to its quiet steps on.
    # The highest confidence where a single link shows it, which may be slow itself.
    in_doubt: float = 0.8


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class _Traffic:
    """Transfers of one family: those between stages, or collectives."""

    # Groups of nodes that move data together, by carrier.
    units: Mapping[_Carrier, list[tuple[int, ...]]]
    # (lines, steps): for each link of each DP rank, or the collectives of each stage: how much
    # longer its transfers take than in the median step
    level: FloatArray
    by_step: FloatArray  # (steps,): the median line's, over that in the quietest steps

    @property
    def slow(self) -> NDArray[np.bool_]:
        """Return the steps in which transfers are slow, shape (steps,)."""
        return np.asarray(self.by_step >= THRESHOLDS.slow)

    @property
    def quiet(self) -> NDArray[np.bool_]:
        """Return the steps that have their typical traffic, shape (steps,)."""
        return np.asarray(self.by_step < THRESHOLDS.quiet)

    @property
    def by_spells(self) -> bool:
        """Return whether there are slow steps and quiet ones."""
        return bool(min(self.slow.sum(), self.quiet.sum()) >= THRESHOLDS.fewest)

    @property
    def everywhere(self) -> bool:
        """Return whether nearly all lines are slow in the same steps."""
        typical = np.median(self.level[:, self.quiet], axis=1, keepdims=True)
        return bool(
            ((self.level / typical)[:, self.slow] >= THRESHOLDS.together).mean()
            >= THRESHOLDS.nearly_all
        )


def _hides(signs: Signs) -> bool:
    """Return whether there are slow steps: where most are, the ideal, a median, is slow too."""
    return bool(_congested(signs.observation))


def _congested(observation: Observation) -> list[_Traffic]:
    """Return the families of transfers that are slow everywhere in some steps."""
    layout = observation.layout
    if layout.pp == 1 or len(layout.steps) < THRESHOLDS.enough_steps:
        return []
    links, collectives = _carriers(observation)
    found = []
    for units, by_rank in ((links, True), (collectives, False)):
        family = _traffic(observation, units, by_rank=by_rank)
        if family.by_spells and family.everywhere:
            found.append(family)
    return found


def _carriers(
    observation: Observation,
) -> tuple[dict[_Carrier, list[tuple[int, ...]]], dict[_Carrier, list[tuple[int, ...]]]]:
    """Return what moves data together, by link and by stage."""
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
    """Return how slow transfers are in each step; `by_rank` where each DP rank has its own."""
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
    # each transfer against its own median step: buckets and directions differ
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
    """Return the slow steps; without them transfers take what they do in the quiet ones."""
    observation = signs.observation
    families = _congested(observation)
    if not families:
        return None
    by_step = np.max([family.by_step for family in families], axis=0)
    slow = by_step >= THRESHOLDS.slow
    # A step is quiet for all families or for none.
    busy = by_step >= THRESHOLDS.quiet
    links, collectives = _carriers(observation)
    transfers: dict[int, FloatArray] = {}
    for units in (links, collectives):
        for moved in units.values():
            transfers.update(_as_when_quiet(observation, moved, slow, busy))
    late = _unrecorded(observation, slow, busy)
    times = float(np.mean(by_step[slow]))
    return Finding(
        change=Change(
            transfers_ns=transfers, on_time={node: late_ns > 0 for node, late_ns in late.items()}
        ),
        evidence=tuple(_evidence(observation, families, by_step)),
        where=Where(spells=SlowSpells(steps=int(slow.sum()), of=len(slow), times=times)),
        figure=TransferLevels(by_step=tuple(by_step.tolist())),
        launches=Launches(late),
        doubt=_doubt(families),
    )


def _as_when_quiet(
    observation: Observation,
    moved: list[tuple[int, ...]],
    slow: NDArray[np.bool_],
    busy: NDArray[np.bool_],
) -> dict[int, FloatArray]:
    """Return what transfers of one carrier take at most in busy steps; none where that is alike."""
    some = [members[0] for members in moved[:: max(1, len(moved) // _SAMPLE)]]
    taken = observation.recorded_ns[some]
    typical = np.median(taken[:, ~busy], axis=(0, 1))
    if np.median(taken[:, slow]) < THRESHOLDS.together * max(float(np.median(typical)), _LEAST_NS):
        return {}
    # One array for all that take it.
    without = np.where(busy[:, None], np.maximum(typical, 0.0)[None, :], np.inf)
    return {node: without for members in moved for node in members}


def _unrecorded(
    observation: Observation, slow: NDArray[np.bool_], busy: NDArray[np.bool_]
) -> dict[int, FloatArray]:
    """Return what the reducing of gradients takes longer in busy steps, where it is not recorded.

    It is the time between computing and what ends the step.
    """
    late = {}
    for node, wait in unrecorded_reducing(observation).values():
        typical = float(np.median(wait[~busy]))
        if np.mean(wait[slow]) >= THRESHOLDS.together * typical:
            late[node] = np.where(busy[:, None], np.maximum(wait - typical, 0.0), 0.0)
    return late


def _doubt(families: list[_Traffic]) -> Doubt | None:
    """Return that one link is slow by itself, where nothing else is slow when it is."""
    if any(len(family.level) > 1 for family in families) or len(families) > 1:
        return None
    return Doubt(THRESHOLDS.in_doubt, Alternative())


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
    spells = _runs(slow)
    listed = ", ".join(_spell(observation, *spell) for spell in spells[:_NAMED])
    more = f" and {len(spells) - _NAMED} more" if len(spells) > _NAMED else ""
    lines.append(Evidence(f"They are slow in {listed}{more}", StepView(step=int(steps[worst]))))
    return lines


def _runs(slow: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the first and the last of each run of slow steps."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], slow, [False]]).astype(np.int8)))
    return [(int(first), int(end) - 1) for first, end in edges.reshape(-1, 2)]


def _spell(observation: Observation, first: int, last: int) -> str:
    """Name a run of steps, with its time of the day where clocks are recorded."""
    steps = observation.layout.steps
    name = f"step {steps[first]}" if first == last else f"steps {steps[first]} to {steps[last]}"
    if observation.trace.step_relative:
        return name
    begin, end = (_clock(observation, place) for place in (first, last))
    return f"{name} ({begin} UTC)" if begin == end else f"{name} ({begin} to {end} UTC)"


def _clock(observation: Observation, place: int) -> str:
    """Return the time of the day at which a step begins."""
    trace, step = observation.trace, observation.layout.steps[place]
    begin_ns = int(trace.start_ns[trace.step == step].min())
    return datetime.fromtimestamp(begin_ns // 10**9, tz=UTC).strftime("%H:%M:%S")


def _cannot_judge(signs: Signs) -> str | None:
    layout = signs.observation.layout
    if layout.pp == 1 or len(layout.steps) >= THRESHOLDS.enough_steps:
        return None
    return (
        f"fewer than {THRESHOLDS.enough_steps} steps, in which spells of other traffic do not show"
    )


def _because(cause: Cause, job: JobFacts) -> str:
    del job
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
    hides=_hides,
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

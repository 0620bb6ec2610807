"""Advice for slow tensor-parallel groups of a recorded session, checked by replay.

All ranks end a collective together, and the last rank to arrive does not wait. A rank's waiting
time therefore is its record of the collective minus the shortest record, and T is its computing
time minus its waiting time. A trace has no kernels, so all time that is neither waiting nor
transfer counts as M.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.diagnosis.causes.kind import Plan
from app.analysis.diagnosis.causes.registry import cause_of
from app.analysis.diagnosis.counterfactual import Counterfactuals
from app.analysis.diagnosis.finding import Cause, Change
from app.analysis.diagnosis.group_waits import (
    Waiting,
    computations_without,
    computing_ns,
    measure_waits,
    waiting_groups,
)
from app.analysis.diagnosis.locations import Worker
from app.analysis.diagnosis.observation import Observation
from app.analysis.mitigation.fixes import Fix
from app.analysis.mitigation.tensor.document import (
    SMALL_GAMMA,
    Alternative,
    Method,
    MitigationDocument,
)
from app.analysis.mitigation.tensor.group import Group
from app.analysis.quantities import NS, FloatArray
from app.analysis.replay.session import Replayed
from app.analysis.trace.model import Trace
from app.analysis.wording import name_list, percent

# A session states no accuracy budget, so only shares of small risk are within it.
ACCURACY_BUDGET: Final = SMALL_GAMMA
# Assumed number of columns of a rank if the metadata lack it.
THOUSANDTHS: Final = 1000
MOST_COLUMNS: Final = 10_000_000
COLUMNS_KEY: Final = "tensor_columns"
# Maximum number of groups with advice; a session rarely has more slow groups.
MOST_GROUPS: Final = 8
# Lower bound of T and M, as a share of the computing time: recorded ends of a collective differ a
# little between ranks, so that the difference could fall to zero.
_LEAST_SHARE: Final = 0.01

_WORDS: Final = {
    Method.ZERO: "ZERO-resizing",
    Method.SEMI: "SEMI-migration",
    Method.MIGRATE: "migration",
    Method.WATERFILL: "water-filled migration",
    Method.STICKY: "moving it once",
}


@dataclass(frozen=True, slots=True)
class GroupAdvice:
    """Advice on a tensor-parallel group with a slow rank."""

    worker: Worker
    """DP rank and stage of the group."""
    ranks: tuple[int, ...]
    """Global ranks of the group, in the order of the advice's ranks."""
    columns_known: bool
    """Whether the metadata have the number of columns of a rank (``tensor_columns``); otherwise the
    advice counts thousandths as columns.
    """
    advice: MitigationDocument
    """Advice with all alternatives, computed from the recorded times of the session."""


@dataclass(frozen=True, slots=True)
class TensorAdvice:
    """Replayed workload control of tensor-parallel groups that wait for a slow rank."""

    groups: tuple[GroupAdvice, ...]
    """Groups with advice, the group with the longest waiting first."""
    predicted_step_time: float
    """Mean step time with each group's chosen alternative, seconds."""
    predicted_gain: float
    """Share of today's step time that the alternatives save."""


def advise_session(
    trace: Trace, replayed: Replayed, causes: Sequence[Cause], now_s: float
) -> TensorAdvice | None:
    """Return advice for groups with a tensor-parallel straggler; None if no such cause is named.

    Parameters
    ----------
    causes : sequence of Cause
        The causes that the diagnosis names.
    now_s : float
        Mean step time today, seconds.
    """
    named_cause = next((c for c in causes if c.cause == cause_of(Plan.SHED_WORK)), None)
    if named_cause is None or not named_cause.saves:
        return None
    # Imported here because the module is slow to load, and few sessions record the ranks of a
    # worker.
    from app.analysis.mitigation.tensor.advice import Problem, advise  # noqa: PLC0415

    observation = Observation(trace, replayed.main)
    workers = set(named_cause.where.workers)
    waits = waiting_groups(observation, measure_waits(observation))
    slow = [group for group in waits if group.cell in workers][:MOST_GROUPS]
    columns = trace.meta.extra.get(COLUMNS_KEY)
    if (
        isinstance(columns, bool)
        or not isinstance(columns, int)
        or not 1 <= columns <= MOST_COLUMNS
    ):
        columns = None
    total = computing_ns(observation)
    steps = len(observation.layout.steps)
    groups, kept = [], []
    for group in slow:
        dp, pp = group.cell
        computing = float(total[pp, dp])
        durations = group.waits.duration_ns
        transfer = durations.min(axis=1)
        waiting = (durations - transfer[:, None]).sum(axis=0)
        time_ns = np.maximum(computing - waiting, _LEAST_SHARE * computing)
        matmul_ns = np.maximum(time_ns - transfer.sum(), _LEAST_SHARE * time_ns)
        advice = advise(
            Problem(
                Group(time_ns * NS / steps, matmul_ns * NS / steps, columns or THOUSANDTHS),
                ACCURACY_BUDGET,
            )
        )
        groups.append(
            GroupAdvice(group.cell, tuple(group.waits.ranks.tolist()), columns is not None, advice)
        )
        kept.append(_share_gained(group, advice.best, steps))
    if not groups:
        return None
    gain = named_cause.saves * _share_of_gain(observation, slow, kept, replayed)
    return TensorAdvice(tuple(groups), now_s * (1 - gain), gain)


def _share_gained(group: Waiting, best: Alternative, steps: int) -> float:
    """Return the share of the group's waiting time that a plan saves.

    A plan takes the same share off the slow rank's work in every step, and saves at most the
    waiting time of each step. It therefore saves less if the rank is slow only intermittently.
    """
    waited = np.maximum(group.waits.wait_ns, 0.0) * NS
    _, number = np.unique(group.waits.step, return_inverse=True)
    by_step_s = np.bincount(number, weights=waited, minlength=steps)
    slowest_s = max(rank.time_s for rank in best.ranks)
    share = (slowest_s - best.predicted_time_s) / slowest_s
    own_s = np.maximum(slowest_s - by_step_s.mean(), 0.0) + by_step_s
    saved_s = np.minimum(by_step_s, share * own_s)
    return min(max(float(saved_s.sum() / by_step_s.sum()), 0.0), 1.0)


def _share_of_gain(
    observation: Observation, slow: Sequence[Waiting], kept: Sequence[float], replayed: Replayed
) -> float:
    """Return the plans' replayed gain ÷ the gain if the groups had no waiting time."""
    whole: dict[int, FloatArray] = {}
    part: dict[int, FloatArray] = {}
    for group, share in zip(slow, kept, strict=True):
        for node, less_ns in computations_without(observation, [group]).items():
            for into, factor in ((whole, 1.0), (part, share)):
                into[node] = into[node] + factor * less_ns if node in into else factor * less_ns
    replays = Counterfactuals(replayed.main, [Change(less_ns=whole), Change(less_ns=part)], {})
    most = replays.gain(frozenset({0}))
    return min(max(replays.gain(frozenset({1})) / most, 0.0), 1.0) if most > 0 else 0.0


def fix_of(advice: TensorAdvice) -> Fix | None:
    """Return the advice as a fix; None if no group is advised to shed work."""
    shedding = [group for group in advice.groups if group.advice.best.method is not Method.NONE]
    if not shedding:
        return None
    ranks, best = [], shedding[0].advice.best
    for group in shedding:
        ranks += [
            str(group.ranks[rank.rank])
            for rank in group.advice.best.ranks
            if rank.resized_columns or rank.migrated_columns
        ]
    loss = max(group.advice.best.gamma for group in shedding)
    risk = f"; leaves out {percent(loss, 0)} of a rank’s columns, measure the loss" if loss else ""
    return Fix(
        "shed_work",
        f"Take work off {name_list('rank', ranks)}: {_WORDS[best.method]}",
        "Replayed with each tensor-parallel group waiting as long as its plan leaves it; "
        f"communication is taken to be free{risk}.",
        advice.predicted_step_time,
        advice.predicted_gain,
        cause=cause_of(Plan.SHED_WORK),
    )

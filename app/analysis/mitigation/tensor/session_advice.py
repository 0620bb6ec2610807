"""Advice for slow tensor-parallel groups of a recorded session, checked by replay.

All ranks end a collective together and the last does not wait: time beyond the shortest record is
waiting, and computing time without it is T. A trace has no kernels: what is neither waiting nor
transfer counts as M.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

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
from app.analysis.mitigation.tensor.document import Alternative, Method, MitigationDocument
from app.analysis.mitigation.tensor.group import Group
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.session import Replayed
from app.analysis.trace.model import Trace
from app.analysis.wording import name_list, percent

NS: Final = 1e-9
# The paper's own question is how much; a quarter is what its accuracies bear.
ACCURACY_BUDGET: Final = 0.25
# Where the metadata do not say how many columns a rank has, shares are of this number.
THOUSANDTHS: Final = 1000
MOST_COLUMNS: Final = 10_000_000
COLUMNS_KEY: Final = "tensor_columns"
# Groups that are advised on; a session rarely has more slow ones.
MOST_GROUPS: Final = 8

_WORDS: Final = {
    Method.ZERO: "ZERO-resizing",
    Method.SEMI: "SEMI-migration",
    Method.MIGRATE: "migration",
    Method.WATERFILL: "water-filled migration",
    Method.STICKY: "moving it once",
}


@dataclass(frozen=True, slots=True)
class GroupAdvice:
    """What to do about the slow rank of a tensor-parallel group."""

    worker: Worker
    """The group: DP rank and stage."""
    ranks: tuple[int, ...]
    """Global ranks of its members, in the order of the advice's."""
    columns_known: bool
    """Whether the metadata say how many columns a rank has (``tensor_columns``); if not, columns
    are thousandths of them."""
    advice: MitigationDocument
    """All alternatives, from the times that the session recorded."""


@dataclass(frozen=True, slots=True)
class TensorAdvice:
    """Work control in tensor-parallel groups that wait for one rank, replayed."""

    groups: tuple[GroupAdvice, ...]
    """The one that waits longest first."""
    predicted_step_time: float
    """Mean step time with each group's chosen alternative, seconds."""
    predicted_gain: float
    """The share of today's step time that it saves."""


def advise_session(
    trace: Trace, replayed: Replayed, causes: Sequence[Cause], now_s: float
) -> TensorAdvice | None:
    """Return the advice for the groups of a tensor-parallel straggler; None without that cause.

    Parameters
    ----------
    causes : sequence of Cause
        Those that the diagnosis names.
    now_s : float
        Today's mean step, seconds.
    """
    named_cause = next((c for c in causes if c.cause == cause_of(Plan.SHED_WORK)), None)
    if named_cause is None or not named_cause.saves:
        return None
    # few sessions record the ranks of a worker, and this is slow to load
    from app.analysis.mitigation.tensor.advice import Problem, advise  # noqa: PLC0415

    observation = Observation(trace, replayed.main)
    workers = set(named_cause.where.workers)
    waits = waiting_groups(observation, measure_waits(observation))
    slow = [group for group in waits if group.cell in workers][:MOST_GROUPS]
    columns = _columns(trace.meta.extra)
    total = computing_ns(observation)
    steps = len(observation.layout.steps)
    groups, kept = [], []
    for group in slow:
        dp, pp = group.cell
        found = advise(
            Problem(
                _group_of(group, float(total[pp, dp]), steps, columns or THOUSANDTHS),
                ACCURACY_BUDGET,
            )
        )
        groups.append(
            GroupAdvice(group.cell, tuple(group.waits.ranks.tolist()), columns is not None, found)
        )
        kept.append(_share_gained(group, found.best, steps))
    if not groups:
        return None
    gain = named_cause.saves * _of_all(observation, slow, kept, replayed)
    return TensorAdvice(tuple(groups), now_s * (1 - gain), gain)


def _columns(extra: Mapping[str, Any]) -> int | None:
    given = extra.get(COLUMNS_KEY)
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= MOST_COLUMNS:
        return None
    return given


def _group_of(group: Waiting, computing: float, steps: int, columns: int) -> Group:
    """Return what each rank takes for a step, without waiting."""
    durations = group.waits.duration_ns
    transfer = durations.min(axis=1)
    waiting = (durations - transfer[:, None]).sum(axis=0)
    # Records of ends differ a little: some computing always remains.
    time_ns = np.maximum(computing - waiting, 0.01 * computing)
    matmul_ns = np.maximum(time_ns - transfer.sum(), 0.01 * time_ns)
    return Group(time_ns * NS / steps, matmul_ns * NS / steps, columns)


def _share_gained(group: Waiting, best: Alternative, steps: int) -> float:
    """Return which share of the group's waiting a plan saves.

    A plan takes the same share of the slow rank's work off in every step, and none can save more
    than it waits for: of a rank that is slow by spells it saves less than of one that always is.
    """
    waited = np.maximum(group.waits.wait_ns, 0.0) * NS
    _, number = np.unique(group.waits.step, return_inverse=True)
    by_step_s = np.bincount(number, weights=waited, minlength=steps)
    slowest_s = max(rank.time_s for rank in best.ranks)
    share = (slowest_s - best.predicted_time_s) / slowest_s
    own_s = np.maximum(slowest_s - by_step_s.mean(), 0.0) + by_step_s
    saved_s = np.minimum(by_step_s, share * own_s)
    return min(max(float(saved_s.sum() / by_step_s.sum()), 0.0), 1.0)


def _of_all(
    observation: Observation, slow: Sequence[Waiting], kept: Sequence[float], replayed: Replayed
) -> float:
    """Return which share of what no waiting at all would save the plans save, replayed."""
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
    """Return the advice as a fix among others; None where nothing is to be shed."""
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

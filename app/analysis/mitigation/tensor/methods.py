"""Methods of workload control: ZERO, MIG, SEMI, water-filling and sticky, with Eq. 1 to 3.

The published text of the paper on ZERO-resizing and SEMI-migration lacks equations 1 to 3. They are
restored here from the paper's prose; tests compare them with the paper's examples and with brute
force. SEMI is the paper's Algorithm 2 without communication: find T_min and the stragglers, then
apply Eq. 2 to a single straggler or Eq. 3 to several stragglers. The paper leaves open what is
decided here: a straggler takes over 1.10 × T_min, since otherwise noise would make all ranks but
one stragglers; ratios are rounded to whole units; each rank keeps at least one unit, so that its
recovery can be measured.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from app.analysis.mitigation.tensor.group import (
    Affine,
    Communication,
    Costs,
    Group,
    Shares,
)
from app.analysis.mitigation.tensor.prediction import busy_s, levelled, predicted_s, routed, slices
from app.analysis.quantities import FloatArray, IntArray

# Number of bisections of [0, 1] after which the interval is below the resolution of a double.
_HALVINGS: Final = 60


def pruning_ratios(time_s: FloatArray, matmul_s: FloatArray, criterion_s: float) -> FloatArray:
    """Return γ of each rank, Eq. 1: γ = (T − T_criterion) / M if T exceeds T_criterion, else 0.

    Parameters
    ----------
    time_s, matmul_s : float64 arrays, shape (ranks,)
        T and M, seconds; T without waiting.
    criterion_s : float
        The mean of T (ZERO-resizing), or its minimum (SEMI-migration), seconds.

    Returns
    -------
    float64 array, shape (ranks,)
        Within [0, 1]; 1 for a rank whose time exceeds the criterion even without its
        multiplications.

    Examples
    --------
    >>> import numpy as np
    >>> time_s = np.array([8.0, *[1.0] * 7])
    >>> round(float(pruning_ratios(time_s, time_s, float(time_s.mean()))[0]), 3)
    0.766
    """
    return np.clip((time_s - criterion_s) / matmul_s, 0.0, 1.0)


def resized_share(shed_columns: float, receivers: int, costs: Costs, column_s: float) -> float:
    """Return β, the share of a straggler's shed columns that is resized, Eq. 2; the rest migrates.

    Ω1 + Ω2(βL) = Φ1((1 − β)L) + Φ2((1 − β)L / (e − 1)): the cost of resizing for the straggler
    equals the cost of migration for each receiver. The left side grows with β, the right one falls.

    Parameters
    ----------
    shed_columns : float
        L, the columns that the straggler sheds.
    receivers : int
        e − 1, the number of other ranks.
    column_s : float
        Time of a column on a receiver, seconds, used if `costs` has no samples of Φ2.

    Returns
    -------
    float
        Within [0, 1]; 1 if resizing all columns costs less than migrating any column.
    """
    compute = costs.compute or Affine(0.0, column_s)

    def resizing_costs_more(beta: float) -> bool:
        migrated = (1 - beta) * shed_columns
        resizing = costs.allocate_s + costs.extract(beta * shed_columns)
        return resizing > costs.communicate(migrated) + compute(migrated / receivers)

    low, high = 0.0, 1.0
    if resizing_costs_more(low):
        return low
    for _ in range(_HALVINGS):
        beta = (low + high) / 2
        if resizing_costs_more(beta):
            high = beta
        else:
            low = beta
    return high


def migrating_ranks(time_s: FloatArray, workload: FloatArray, communicate: Communication) -> int:
    """Return x, the number of stragglers that migrate, Eq. 3; the other stragglers resize.

    With V_x = Σ_{i ≤ x} W_i (T_i − T_min) / T_i, the result is the largest x for which f(x) = (T_x
    − T_min) − max_{j > x} [Φ1(V_x, x) + (T_j / W_j) · V_x / (e − x)] is positive. Every x is
    tried, since f is not monotonic. Φ1 depends on the number of senders too, unlike the paper's.

    Parameters
    ----------
    time_s : float64 array, shape (ranks,)
        T, seconds, descending.
    workload : float64 array, shape (ranks,)
        W, columns that each rank computes now.
    communicate : Communication
        Φ1.

    Returns
    -------
    int
        0 … ranks − 1; 0 if migration pays for no straggler.
    """
    ranks = len(time_s)
    over_s = time_s - time_s[-1]
    volume = np.cumsum(workload * over_s / time_s)
    migrating = 0
    for x in range(1, ranks):
        columns = float(volume[x - 1])
        computing_s = (time_s[x:] / workload[x:]).max() * columns / (ranks - x)
        added_s = communicate(columns, x) + computing_s
        if over_s[x - 1] > added_s:
            migrating = x
    return migrating


def resize(group: Group, criterion_s: float, most: float = 1.0) -> Shares:
    """Return ZERO-resizing's shares: stragglers leave out columns until they meet the criterion.

    Parameters
    ----------
    criterion_s : float
        T_avg or T_min, seconds.
    most : float
        The largest γ of any rank: the accuracy budget.
    """
    shares, slow = Shares.nothing(group.ranks), group.stragglers
    shed = np.minimum(_to_shed(group, criterion_s), _most_units(group, most))
    shares.resized[slow] = shed[slow]
    return shares


def migrate(group: Group) -> Shares:
    """Return MIG's shares: stragglers divide their excess over T_min among the other ranks."""
    return _migrated(group, group.stragglers, _to_shed(group, group.fastest_s))


def semi(group: Group, costs: Costs, most: float = 1.0) -> Shares:
    """Return SEMI's shares: heavy stragglers migrate, others resize, a single straggler does both.

    Parameters
    ----------
    most : float
        The maximum γ of any rank. A straggler migrates the columns beyond this maximum if that ends
        the step sooner.
    """
    stragglers, shed = group.stragglers, _to_shed(group, group.fastest_s)
    budget = _most_units(group, most)
    if len(stragglers) == 1:
        straggler = int(stragglers[0])
        count = int(shed[straggler])
        receivers = np.delete(np.arange(group.ranks), straggler)
        column_s = float(group.unit_s[receivers].max()) / group.unit
        beta = resized_share(count * group.unit, len(receivers), costs, column_s)
        resized, handed = np.zeros_like(shed), np.zeros_like(shed)
        resized[straggler] = min(round(beta * count), budget)
        handed[straggler] = count - resized[straggler]
        return _migrated(group, stragglers, handed, resized)
    order = np.argsort(-group.time_s, kind="stable")
    workload = np.full(group.ranks, float(group.columns))
    paying = migrating_ranks(group.time_s[order], workload, costs.communicate)
    migrating, resizing = stragglers[:paying], stragglers[paying:]
    only_resized = np.zeros_like(shed)
    only_resized[resizing] = np.minimum(shed[resizing], budget)
    choices = [_migrated(group, migrating, shed, only_resized)]
    if (shed[resizing] > budget).any():
        choices.append(_migrated(group, stragglers, shed - only_resized, only_resized))
    return min(choices, key=lambda shares: float(predicted_s(group, shares, costs).max()))


def fill(group: Group, costs: Costs) -> Shares:
    """Return water-filling's shares: every column runs on the rank where it ends soonest.

    Moving more columns evens out the ranks' times but costs more communication. The candidates
    therefore are: no move, ranks cut to the level of each other rank's time, and equal times.
    """
    levels = np.unique(group.time_s)[1:-1].tolist()
    choices = [_cut_to_level(group, level_s) for level_s in levels]
    choices += [np.full(group.ranks, group.units), _even(group)]
    return _routed(group, min(choices, key=lambda units: _finish_s(group, units, costs)))


def even(group: Group) -> Shares:
    """Return sticky's shares of all columns, which minimize the slowest rank's time."""
    return _routed(group, _even(group))


def _even(group: Group) -> IntArray:
    return levelled(group.fixed_s, group.unit_s, group.ranks * group.units)


def _cut_to_level(group: Group, level_s: float) -> IntArray:
    """Return the units of each rank, reduced on ranks whose time exceeds a level to that level."""
    kept = np.floor((level_s - group.fixed_s) / group.unit_s)
    units = np.clip(kept, 1, group.units).astype(np.int64)
    below = np.flatnonzero(group.time_s <= level_s)
    total = group.ranks * group.units - int(np.delete(units, below).sum())
    units[below] = levelled(group.fixed_s[below], group.unit_s[below], total, group.units)
    return units


def _finish_s(group: Group, units: IntArray, costs: Costs) -> float:
    """Return the slowest rank's time, s; it does not depend on the pairs of ranks that exchange."""
    given, taken = np.maximum(group.units - units, 0), np.maximum(units - group.units, 0)
    return float(busy_s(group, np.zeros_like(units), given, taken, costs).max())


def _routed(group: Group, units: IntArray) -> Shares:
    shed, received = np.maximum(group.units - units, 0), np.maximum(units - group.units, 0)
    return Shares(np.zeros_like(shed), routed(shed, received))


def _to_shed(group: Group, criterion_s: float) -> IntArray:
    """Return the number of units that each rank sheds by Eq. 1, shape (ranks,)."""
    ratio = pruning_ratios(group.time_s, group.matmul_s, criterion_s)
    return np.minimum(np.rint(ratio * group.units).astype(np.int64), group.units - 1)


def _most_units(group: Group, most: float) -> int:
    # The epsilon absorbs rounding: in floating point, too, a budget of 0.3 of ten units is three
    # units.
    return min(int(np.floor(most * group.units + 1e-9)), group.units - 1)


def _migrated(
    group: Group, senders: IntArray, shed: IntArray, resized: IntArray | None = None
) -> Shares:
    """Return the shares in which each sender divides its shed units evenly among the receivers."""
    shares = Shares.nothing(group.ranks)
    if resized is not None:
        shares.resized[:] = resized
    receivers = np.setdiff1d(np.arange(group.ranks), senders)
    for sender in senders.tolist():
        shares.moved[sender] = slices(int(shed[sender]), sender, receivers, group.ranks)
    return shares

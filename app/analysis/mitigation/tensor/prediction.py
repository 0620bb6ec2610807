"""What each rank takes for a step under a plan."""

from __future__ import annotations

import numpy as np

from app.analysis.mitigation.tensor.costs import Affine, Costs
from app.analysis.mitigation.tensor.group import FloatArray, Group, IntArray, Shares


def predicted_s(
    group: Group, shares: Shares, costs: Costs, *, each_step: bool = True
) -> FloatArray:
    """Return T of each rank under a plan, without waiting; the step waits for the slowest.

    A rank that resizes also pays Ω1 + Ω2. Every rank takes part in sending columns and bringing
    their results back, Φ1 of all that is migrated: the collectives of a migration are the group's.

    Parameters
    ----------
    group : Group
        Without a plan.
    shares : Shares
    costs : Costs
    each_step : bool
        Whether what migrates is sent in each step; if not, columns have moved once, and are
        computed with the receiver's own.

    Returns
    -------
    float64 array, shape (ranks,)
        Seconds.
    """
    return busy_s(
        group, shares.resized, shares.migrated, shares.received, costs, each_step=each_step
    )


def busy_s(  # noqa: PLR0913 - the parts of a plan
    group: Group,
    resized: IntArray,
    given: IntArray,
    received: IntArray,
    costs: Costs,
    *,
    each_step: bool = True,
) -> FloatArray:
    """Return the same from how many units each rank leaves out, hands over and takes over.

    Parameters
    ----------
    group : Group
    resized, given, received : int64 arrays, shape (ranks,)
    costs : Costs
    each_step : bool

    Returns
    -------
    float64 array, shape (ranks,)
        Seconds.
    """
    unit = group.unit
    time_s: FloatArray = group.fixed_s + group.unit_s * (group.units - resized - given)
    if each_step and costs.compute is not None:
        # The pre-test ran where nothing was slow.
        slower = group.unit_s / group.unit_s.min()
        time_s += slower * _each(costs.compute, received * unit)
    else:
        time_s += group.unit_s * received
    if each_step:
        time_s += costs.communicate(int(received.sum()) * unit)
    time_s += _each(costs.extract, resized * unit) + costs.allocate_s * (resized > 0)
    return time_s


def _each(cost: Affine, columns: IntArray) -> FloatArray:
    return np.where(columns > 0, cost.fixed_s + cost.column_s * columns, 0.0)

"""Plan of a whole job, with simpler ways for comparison; if no plan fits, sufficient changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from app.analysis.planning.job.costs import stage_costs
from app.analysis.planning.job.search import search_job
from app.analysis.planning.job.space import FoundJob, JobPlan
from app.analysis.planning.job.spec import (
    INTERLEAVES,
    MICROBATCHES,
    FixedParallelism,
    JobSpec,
    Recompute,
)
from app.analysis.planning.search.budget import SearchBudget
from app.errors import Fault, InfeasiblePlanError

_GIB: Final = 2**30
# Maximum factor of the devices' memory that is tried, and the factor's precision in the bisection.
_MOST_MEMORY: Final = 64.0
_CLOSE: Final = 1.01
# Maximum number of nodes of a multiple of the cluster that is tried.
_MOST_PLANNED: Final = 1024
# Maximum number of additional nodes of one type, and maximum number of other values of a parallel
# size, that are tried.
_MOST_MORE: Final = 8
_MOST_TRIED: Final = 32
# Time limit of each comparison, seconds; at the limit its best plan so far is compared.
_COMPARED_S: Final = 2.0


def plan_job(
    spec: JobSpec, budget: SearchBudget | None = None, *, compare: bool = True
) -> FoundJob:
    """Return the fastest plan of a job.

    Parameters
    ----------
    compare : bool
        Also plan simpler ways to run the job, which does not count as planning time.

    Raises
    ------
    InfeasiblePlanError
        No plan fits. The error holds changes, each of which makes a plan possible.
    """
    found_job = search_job(spec, budget)
    if found_job is None:
        raise InfeasiblePlanError(
            "no plan fits the devices",
            faults=tuple(_sufficient_changes(spec, budget or SearchBudget())),
        )
    if not compare:
        return found_job
    budget = budget or SearchBudget()
    comparison: dict[str, JobPlan | None] = {}
    for name, simpler in _simpler_ways(spec):
        deadline = None if budget.deadline_s is None else budget.clock() + _COMPARED_S
        best = search_job(simpler, SearchBudget(budget.clock, deadline))
        comparison[name] = None if best is None else best.plan
    return replace(found_job, comparison=comparison)


def _simpler_ways(spec: JobSpec) -> Iterator[tuple[str, JobSpec]]:
    """Yield the specifications of simpler ways to run the job, by name."""
    if spec.as_it_runs is not None:
        sizes = spec.as_it_runs.sizes
        if len(spec.devices) > 1:  # pipelines over several types run plain 1F1B
            sizes = replace(sizes, interleave=1)
        yield "same_sizes", replace(spec, fixed=sizes)
    if spec.fixed == FixedParallelism():
        yield "one_pipeline", replace(spec, fixed=FixedParallelism(dp=1))
    if len(spec.devices) == 1:
        return
    pace = [stage_costs(spec, device, 1, 1, Recompute.NONE).block_ps for device in spec.devices]
    slow = pace.index(max(pace))
    everywhere = replace(spec.devices[slow], nodes=spec.nodes)
    yield "slowest_everywhere", replace(spec, devices=(everywhere,))
    fast = tuple(device for kind, device in enumerate(spec.devices) if kind != slow)
    yield f"without_{spec.devices[slow].name}", replace(spec, devices=fast)
    if len(spec.devices) > 2:  # noqa: PLR2004 - of two types, this is `without_` the slowest
        for device in fast:
            yield f"{device.name}_alone", replace(spec, devices=(device,))
    yield f"{spec.devices[slow].name}_alone", replace(spec, devices=(spec.devices[slow],))


def _sufficient_changes(spec: JobSpec, budget: SearchBudget) -> Iterator[Fault]:
    """Yield for each kind of change the smallest change that makes a plan possible."""
    memory = _least_factor(lambda factor: _with_memory(spec, factor), budget)
    for number, device in enumerate(spec.devices if memory is not None else ()):
        size = device.accelerator.memory_bytes
        if size is not None and memory is not None:
            every = " on every type" if len(spec.devices) > 1 else ""
            message = f"with {size * memory / _GIB:.1f} GiB a GPU{every} there is a plan"
            yield Fault("more_memory", message, column=f"devices[{number}].memory_bytes")
            break
    nodes = _more_nodes(spec, budget)
    if nodes is not None:
        yield nodes
    if not spec.allow_idle and _possible(replace(spec, allow_idle=True), budget):
        message = "allow idle devices: with nodes left out there is a plan"
        yield Fault("allow_idle", message, column="allow_idle")
    for key in ("recompute", "tp", "pp", "dp", "microbatch", "interleave"):
        if getattr(spec.fixed, key) is not None:
            value = _other_size(spec, key, budget)
            if value is not None:
                yield Fault("free_size", value, column=f"parallelism.{key}")


def _more_nodes(spec: JobSpec, budget: SearchBudget) -> Fault | None:
    """Return the fewest additional nodes of one type that suffice, else a multiple of all nodes."""
    kinds = range(len(spec.devices))
    for more, kind in itertools.product(range(1, _MOST_MORE + 1), kinds):
        budget.check()
        device = spec.devices[kind]
        devices = list(spec.devices)
        devices[kind] = replace(device, nodes=device.nodes + more)
        if _possible(replace(spec, devices=tuple(devices)), budget):
            message = f"with {device.nodes + more} nodes there is a plan"
            return Fault("more_nodes", message, column=f"devices[{kind}].nodes")
        if budget.spent:
            return None
    for factor in range(2, _MOST_PLANNED // spec.nodes + 1):
        budget.check()
        devices = [replace(device, nodes=device.nodes * factor) for device in spec.devices]
        if _possible(replace(spec, devices=tuple(devices)), budget):
            message = f"with {factor} times the nodes there is a plan"
            return Fault("more_nodes", message, column="devices")
        if budget.spent:
            return None
    return None


def _other_size(spec: JobSpec, key: str, budget: SearchBudget) -> str | None:
    """Return the nearest value of a size that makes a plan possible; None if no value does."""
    if not _possible(replace(spec, fixed=replace(spec.fixed, **{key: None})), budget):
        return None
    fixed_value = getattr(spec.fixed, key)
    some: Sequence[Recompute | int] = tuple(Recompute)
    if not isinstance(fixed_value, Recompute):
        whole = INTERLEAVES if key == "interleave" else range(1, spec.gpus + 1)
        sizes = MICROBATCHES if key == "microbatch" else whole
        some = sorted(sizes, key=lambda size: (abs(size - fixed_value), size))
    for size in some[:_MOST_TRIED]:
        budget.check()
        change: dict[str, Any] = {key: size}
        other = replace(spec, fixed=replace(spec.fixed, **change))
        if size != fixed_value and _possible(other, budget):
            return f"{size} would do"
        if budget.spent:
            break
    return "without it there is a plan"


def _with_memory(spec: JobSpec, factor: float) -> JobSpec:
    return replace(
        spec,
        devices=tuple(
            replace(
                device,
                accelerator=replace(
                    device.accelerator,
                    memory_bytes=None
                    if device.accelerator.memory_bytes is None
                    else device.accelerator.memory_bytes * factor,
                ),
            )
            for device in spec.devices
        ),
    )


def _least_factor(changed: Callable[[float], JobSpec], budget: SearchBudget) -> float | None:
    """Return the least factor that makes a plan possible; None if the largest factor does not."""
    low, high = 1.0, _MOST_MEMORY
    if not _possible(changed(high), budget):
        return None
    while high > low * _CLOSE:
        budget.check()
        middle = (low * high) ** 0.5
        if _possible(changed(middle), budget):
            high = middle
        else:
            low = middle
    return high


def _possible(spec: JobSpec, budget: SearchBudget) -> bool:
    """Return whether the job has any plan."""
    # A deadline in the past ends the search at its first plan. The clock is still read, because
    # reading it lets the caller cancel the search.
    at_once = SearchBudget(lambda: budget.clock() * 0 + 1.0, 0.0)
    return search_job(spec, at_once) is not None

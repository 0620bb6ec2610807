"""A pipeline template around slow workers and uneven stages, judged by replay.

A session's measured times say what each layer takes and how fast each worker truly is: the cluster
is heterogeneous, and the planner finds the best division of the layers over it. The template is
then replayed on the session's own durations: each microbatch keeps its own luck on its worker, and
takes the share of the worker's new layers in its old ones. Gradients, parameters and the optimizer
grow with the number of layers. Transfers between stages stay as they were recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from app.analysis.diagnosis.causes.kind import Plan
from app.analysis.diagnosis.causes.registry import KINDS, cause_of
from app.analysis.diagnosis.finding import Cause
from app.analysis.diagnosis.observation import Observation
from app.analysis.mitigation.fix import Fix
from app.analysis.mitigation.layers.costs import estimate_costs
from app.analysis.mitigation.templates import (
    PlannedTemplate,
    StageLayers,
    StageTimes,
    WithheldTemplate,
)
from app.analysis.planning.spec.measured import (
    SessionTimes,
    measure_session,
    spec_of_session,
    worker_speeds,
)
from app.analysis.replay.engine.variants import Replacement
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.session import Replayed, ShapeGroup
from app.analysis.trace import model as ops
from app.analysis.trace.layers import layers_per_chunk, layers_per_stage
from app.analysis.trace.model import Trace
from app.errors import InfeasiblePlanError

if TYPE_CHECKING:
    from app.analysis.planning.plan import FoundPlan

# What a page shows a template for.
MIN_GAIN: Final = 0.02
CAUSES: Final = frozenset(kind.name for kind in KINDS.values() if kind.planned_around)
LAYERS_UNKNOWN: Final = "layers_unknown"
NS: Final = 1e-9
_MS_PER_NS: Final = 1e-6
# Templates whose executions differ by less are both replayed; of gains that differ by less, the
# steadier template's counts.
_AS_FAST: Final = 0.01
_AS_GOOD: Final = 0.001
# An embedding or a head is said to be there that takes this share of a layer.
_WORTH_SAYING: Final = 0.1

_FORWARD: Final = (ops.FORWARD_COMPUTE,)
_BACKWARD: Final = (ops.BACKWARD_COMPUTE, ops.WGRAD_COMPUTE)
# In proportion to the parameters of a stage.
_BY_LAYERS: Final = (ops.PARAMS_ALL_GATHER, ops.GRADS_REDUCE_SCATTER, ops.OPTIMIZER)


def recommend_template(
    trace: Trace,
    replayed: Replayed,
    causes: Sequence[Cause],
    fixes: Sequence[Fix],
    simulated_s: float,
) -> PlannedTemplate | WithheldTemplate | None:
    """Return a template for a session that has a slow worker or an uneven stage.

    Parameters
    ----------
    replayed : Replayed
        The same session, prepared for replay.
    causes : sequence of Cause
        What the diagnosis names.
    fixes : sequence of Fix
        Of uneven stages the template is the division that is among them.
    simulated_s : float
        The mean step as it is.

    Returns
    -------
    PlannedTemplate, WithheldTemplate or None
        None where no cause calls for a template: what comes by spells is not planned around.
    """
    pp = replayed.layout.pp
    named = [cause for cause in causes if cause.cause in CAUSES]
    lasting = [cause for cause in named if cause.where.spells is None]
    if pp == 1 or not lasting:
        return None
    if layers_per_chunk(trace.meta.extra, pp, trace.meta.sizes.vpp) is None:
        return WithheldTemplate(
            LAYERS_UNKNOWN, 'The metadata do not say, as "layers", how many layers each stage has.'
        )
    if all(cause.cause == cause_of(Plan.DIVIDE_LAYERS) for cause in named):
        divided = next((fix for fix in fixes if fix.division is not None), None)
        return None if divided is None else _of_division(trace, replayed, divided)
    layers = layers_per_stage(trace.meta.extra, pp)
    try:
        times = measure_session(trace)
    except InfeasiblePlanError as error:
        return WithheldTemplate(error.stable_code, error.message)
    return None if layers is None else _planned(replayed, times, layers, simulated_s)


def _of_division(trace: Trace, replayed: Replayed, fix: Fix) -> PlannedTemplate | None:
    """Return a division of the layers as a template: no unit moves."""
    division = fix.division
    today = layers_per_chunk(trace.meta.extra, replayed.layout.pp, trace.meta.sizes.vpp)
    costs = None if today is None else estimate_costs(Observation(trace, replayed.main), today)
    if division is None or costs is None:
        return None
    stage = np.array([stage for stage, _ in costs.places])
    counts = np.array([division.layers[stage][chunk] for stage, chunk in costs.places])

    def by_stage(times: FloatArray) -> tuple[float, ...]:
        return tuple(np.bincount(stage, weights=times.sum(axis=0) * _MS_PER_NS).tolist())

    passes = np.bincount(replayed.layout.nodes.op, minlength=len(replayed.layout.op_names))
    (forwards,) = passes[replayed.layout.codes(ops.FORWARD_COMPUTE)].tolist()
    return PlannedTemplate(
        layers=StageLayers(
            tuple(sum(chunks) for chunks in division.today),
            tuple(sum(chunks) for chunks in division.layers),
        ),
        stage_ms=StageTimes(by_stage(costs.level_ns), by_stage(costs.times_ns(counts))),
        worker_of_stage=tuple(range(replayed.layout.pp)),
        speed_of_worker=(1.0,) * replayed.layout.pp,
        embedding=division.embedding_ms >= _WORTH_SAYING * division.layer_ms,
        head=division.head_ms >= _WORTH_SAYING * division.layer_ms,
        microbatches=forwards // len(costs.places),
        proven=division.proven,
        predicted_step_time=fix.step_time_s,
        predicted_gain=fix.gain,
    )


def _planned(
    replayed: Replayed, times: SessionTimes, layers: tuple[int, ...], simulated_s: float
) -> PlannedTemplate:
    # The planner's compiler takes a second to load: only sessions that need it pay for it.
    from app.analysis.planning.plan import plan  # noqa: PLC0415 - see above

    spec = spec_of_session(times, layers)
    found = plan(spec, compare=False)
    first, *others = (
        _replayed(contender, replayed, times, layers, simulated_s)
        for contender in _contenders(found)
    )
    return next(
        (one for one in others if one.predicted_gain >= first.predicted_gain - _AS_GOOD), first
    )


def _contenders(found: FoundPlan) -> tuple[FoundPlan, ...]:
    """Return the plan that executes fastest, and the steadiest that executes about as fast.

    Times vary more in a job than in a plan: the shorter slowest stage is the safer one.
    """
    from app.analysis.planning.template import evaluate  # noqa: PLC0415 - see above

    times = {one: evaluate(found.problem, one) for one in found.alternatives}
    longest = times[found.template].simulated * (1 + _AS_FAST)
    near = [one for one in times if times[one].simulated <= longest]
    steadiest = min(near, key=lambda one: (times[one].t_std, times[one].simulated))
    if steadiest == found.template:
        return (found,)
    return (found, replace(found, template=steadiest))


def _replayed(
    found: FoundPlan,
    replayed: Replayed,
    times: SessionTimes,
    layers: tuple[int, ...],
    simulated_s: float,
) -> PlannedTemplate:
    spec = found.problem.spec
    cuts = [(stage.first, stage.end) for stage in found.template]
    names = [spec.devices[stage.nodes[0][0]].name for stage in found.template]
    speeds = worker_speeds(times).min(axis=0)
    places = _places(names, len(layers))
    before = _has_embedding(times, spec.layers, layers)
    counts = _blocks(cuts, sum(layers), before=before)
    forward, backward = np.median(times.forward_ms, axis=0), np.median(times.backward_ms, axis=0)
    new_forward = np.array([sum(x.forward_ms for x in spec.layers[a:b]) for a, b in cuts])
    new_backward = np.array([sum(x.backward_ms for x in spec.layers[a:b]) for a, b in cuts])
    step_s = NS * replayed.over_steps(
        lambda group: _replay(
            group,
            places,
            new_forward / forward[places],
            new_backward / backward[places],
            np.array(counts) / np.array(layers),
        )
    )
    predicted_s = float(step_s.mean())
    healthy = forward + backward
    return PlannedTemplate(
        layers=StageLayers(layers, tuple(counts)),
        stage_ms=StageTimes(
            today=tuple((healthy / speeds).tolist()),
            template=tuple(((new_forward + new_backward) / speeds[places]).tolist()),
        ),
        worker_of_stage=tuple(places.tolist()),
        speed_of_worker=tuple(speeds.tolist()),
        embedding=before,
        head=len(spec.layers) > sum(layers) + before,
        microbatches=spec.microbatches,
        proven=found.optimal,
        gap=found.gap,
        predicted_step_time=predicted_s,
        predicted_gain=1 - predicted_s / simulated_s,
    )


def _places(names: list[str], stages: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return whose workers each stage gets, as the number of their stage today.

    Slow workers go where the template wants them; healthy ones stay where they can.
    """
    slow = {f"stage {stage}'s worker": stage for stage in range(stages)}
    places = [slow.get(name) for name in names]
    free = [stage for stage in range(stages) if stage not in places]
    for position, place in enumerate(places):
        if place is None and position in free:
            places[position] = position
            free.remove(position)
    return np.array([free.pop(0) if place is None else place for place in places])


def _has_embedding(times: SessionTimes, layers: tuple[Any, ...], counts: tuple[int, ...]) -> bool:
    """Return whether the first layer of a session's specification is its embedding.

    `spec_of_session` makes one where the first stage takes longer than its blocks.
    """
    if len(layers) == sum(counts):
        return False
    stage_ms = float(np.median(times.forward_ms, axis=0)[0])
    passes = [layer.forward_ms for layer in layers]
    without, with_one = sum(passes[: counts[0]]), sum(passes[: counts[0] + 1])
    return bool(abs(with_one - stage_ms) < abs(without - stage_ms))


def _blocks(cuts: list[tuple[int, int]], total: int, *, before: bool) -> list[int]:
    """Return how many of the model's layers each stage has, embedding and head not counted."""
    first, end = int(before), int(before) + total
    return [max(min(b, end) - max(a, first), 0) for a, b in cuts]


def _replay(
    group: ShapeGroup,
    places: np.ndarray[Any, np.dtype[np.int64]],
    forward: FloatArray,
    backward: FloatArray,
    by_layers: FloatArray,
) -> FloatArray:
    """Replay the template; factors are each stage's new time over that of its workers today."""
    layout, nodes = group.layout, group.layout.nodes
    recorded = group.durations.recorded_ns
    at = {
        key: node
        for node, key in enumerate(
            zip(nodes.op.tolist(), nodes.pp.tolist(), nodes.order.tolist(), strict=True)
        )
    }
    factors: dict[int, FloatArray] = {}
    factors |= dict.fromkeys(layout.codes(*_FORWARD), forward)
    factors |= dict.fromkeys(layout.codes(*_BACKWARD), backward)
    factors |= dict.fromkeys(layout.codes(*_BY_LAYERS), by_layers)
    moves = set(layout.codes(*_FORWARD, *_BACKWARD))
    changed = [
        (node, at.get((op, int(places[stage]), order), node) if op in moves else node, op, stage)
        for (op, stage, order), node in at.items()
        if op in factors
    ]
    sources = [source for _, source, _, _ in changed]
    factor = np.array([factors[op][stage] for _, _, op, stage in changed])
    replacement = Replacement(
        np.array([node for node, _, _, _ in changed]),
        lambda steps: recorded[sources, steps] * factor[:, None, None],
    )
    times: FloatArray = group.simulator.replaced_step_times(replacement)[0]
    return times

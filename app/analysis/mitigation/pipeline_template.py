"""Recommended pipeline template for slow workers and uneven stages, chosen by replay.

Typical stage times give the cost of a layer, the embedding and the head; each worker's deviation is
its speed. The planner divides the layers over this heterogeneous cluster. The replay scales each
recorded duration by new ÷ old time of its stage; transfers between stages stay as recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from app.analysis.diagnosis.causes.kind import Plan
from app.analysis.diagnosis.causes.registry import KINDS, cause_of
from app.analysis.diagnosis.finding import Cause
from app.analysis.diagnosis.observation import Observation
from app.analysis.mitigation.fixes import (
    Fix,
    PlannedTemplate,
    StageLayers,
    StageTimes,
    WithheldTemplate,
)
from app.analysis.mitigation.layers.costs import LayerCosts, estimate_costs
from app.analysis.mitigation.layers.execution import BY_LAYERS
from app.analysis.planning.spec import Layer, MeasuredSession, spec_of_session
from app.analysis.quantities import FloatArray, IntArray
from app.analysis.replay.engine.simulator import Replacement
from app.analysis.replay.host_delays import launched_step_times
from app.analysis.replay.session import Replayed, ShapeGroup
from app.analysis.trace import model as ops
from app.analysis.trace.parallelism import layers_per_chunk

if TYPE_CHECKING:
    from app.analysis.planning.plan import FoundPlan


# Templates with a smaller gain, as a share of the step time, are not shown.
MIN_GAIN: Final = 0.02
CAUSES: Final = frozenset(kind.name for kind in KINDS.values() if kind.planned_around)
LAYERS_UNKNOWN: Final = "layers_unknown"
VIRTUAL_STAGES: Final = "plan.virtual_stages"
STAGES_DIFFER: Final = "stages_differ"
_MS_PER_NS: Final = 1e-6
# Lower bound of a layer's time, ms: the planner needs positive times.
_LEAST_MS: Final = 1e-6
# Templates whose step time exceeds the fastest by at most the first share are replayed too. Among
# them the template with the lower t_std is chosen, unless its gain is lower by more than the second
# share.
_AS_FAST: Final = 0.01
_AS_GOOD: Final = 0.001
# An embedding or a head is mentioned only if it takes at least this share of a layer's time.
_MENTIONED_FROM: Final = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class _MeasuredJob:
    """Measured inputs of a session's templates."""

    replayed: Replayed
    costs: LayerCosts
    session: MeasuredSession
    now_s: float
    doubted: bool  # whether the slow worker may be a heavy stage instead

    @property
    def layers(self) -> tuple[int, ...]:
        """Return the layers of each stage."""
        return tuple(self.costs.layers.tolist())


def recommend_template(
    observation: Observation,
    replayed: Replayed,
    causes: Sequence[Cause],
    fixes: Sequence[Fix],
    now_s: float,
) -> PlannedTemplate | WithheldTemplate | None:
    """Return the recommended template for a session with a slow worker or an uneven stage.

    Parameters
    ----------
    observation : Observation
        The session before any cause is removed from it.
    replayed : Replayed
        The same session, prepared for replay.
    causes : sequence of Cause
        The causes that the diagnosis names.
    fixes : sequence of Fix
        If only stages are uneven, the fix among them that divides the layers becomes the template.
    now_s : float
        Mean step time today, seconds.

    Returns
    -------
    PlannedTemplate, WithheldTemplate or None
        None if no lasting cause calls for a template: no template is planned for intermittent
        causes.
    """
    meta, pp = observation.trace.meta, replayed.layout.pp
    named = [cause for cause in causes if cause.cause in CAUSES]
    lasting = [cause for cause in named if cause.where.spells is None]
    if pp == 1 or not lasting:
        return None
    layers = layers_per_chunk(meta.extra, pp, meta.sizes.vpp)
    if layers is None:
        return WithheldTemplate(
            LAYERS_UNKNOWN, 'The metadata do not say, as "layers", how many layers each stage has.'
        )
    costs = estimate_costs(observation, layers)
    if all(cause.cause == cause_of(Plan.DIVIDE_LAYERS) for cause in named):
        divided = next((fix for fix in fixes if fix.division is not None), None)
        return None if divided is None or costs is None else _of_division(replayed, divided, costs)
    if meta.sizes.vpp > 1:
        return WithheldTemplate(VIRTUAL_STAGES, "Templates with virtual stages are not planned.")
    if costs is None:
        return WithheldTemplate(
            STAGES_DIFFER, "Stages do not all compute the same microbatches, forward and backward."
        )
    doubted = any(cause.contribution is None for cause in named)
    job = _MeasuredJob(
        replayed, costs, _measured_session(observation, costs), now_s, doubted=doubted
    )
    # Imported here because the planner's compiled code takes a second to load, and only sessions
    # with a cause to fix need the planner.
    from app.analysis.planning.plan import plan  # noqa: PLC0415 - see above

    found_plan = plan(spec_of_session(job.session), compare=False)
    fastest, *steadier = (_replayed(contender, job) for contender in _contenders(found_plan))
    least_gain = fastest.predicted_gain - _AS_GOOD
    return next((other for other in steadier if other.predicted_gain >= least_gain), fastest)


def _of_division(replayed: Replayed, fix: Fix, costs: LayerCosts) -> PlannedTemplate | None:
    """Return the template of a division of the layers in which every worker keeps its stage."""
    division = fix.division
    if division is None:
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
        embedding=division.embedding_ms >= _MENTIONED_FROM * division.layer_ms,
        head=division.head_ms >= _MENTIONED_FROM * division.layer_ms,
        microbatches=forwards // len(costs.places),
        proven=division.proven,
        predicted_step_time=fix.step_time_s,
        predicted_gain=fix.gain,
        at_most=fix.at_most,
    )


def _measured_session(observation: Observation, costs: LayerCosts) -> MeasuredSession:
    """Return the session's layers, including embedding and head, and the speeds of its workers."""
    forward = np.array([name == ops.FORWARD_COMPUTE for name in costs.passes])
    backward = ~forward

    def layer(times_ns: FloatArray) -> Layer:
        return Layer(
            max(float(times_ns[forward].sum() * _MS_PER_NS), _LEAST_MS),
            max(float(times_ns[backward].sum() * _MS_PER_NS), _LEAST_MS),
        )

    ends = [
        [layer(costs.extra_ns[:, end])] if costs.extra_ns[:, end].any() else [] for end in (0, -1)
    ]
    passes = [observation.passes[name] for name in costs.passes]
    taken = np.add.reduce([item.own_ns[:, 0] for item in passes])
    return MeasuredSession(
        layers=(*ends[0], *map(layer, costs.layer_ns.T), *ends[1]),
        speeds=(costs.level_ns.sum(axis=0)[:, None] / taken).T,
        microbatches=passes[0].nodes.shape[1],
    )


def _contenders(found_plan: FoundPlan) -> tuple[FoundPlan, ...]:
    """Return the fastest plan, and among plans almost as fast the plan with the lowest t_std.

    A running job's times vary more than a plan's times, so the plan with the faster slowest stage
    is safer.
    """
    from app.analysis.planning.template import evaluate  # noqa: PLC0415 - compiled, as the planner

    times = {
        template: evaluate(found_plan.problem, template) for template in found_plan.alternatives
    }
    longest = times[found_plan.template].simulated * (1 + _AS_FAST)
    near = [template for template in times if times[template].simulated <= longest]
    steadiest = min(near, key=lambda template: (times[template].t_std, times[template].simulated))
    if steadiest == found_plan.template:
        return (found_plan,)
    return (found_plan, replace(found_plan, template=steadiest))


def _replayed(found_plan: FoundPlan, problem: _MeasuredJob) -> PlannedTemplate:
    spec, costs, layers = found_plan.problem.spec, problem.costs, problem.layers
    cuts = [(stage.first, stage.end) for stage in found_plan.template]
    names = [spec.devices[stage.nodes[0][0]].name for stage in found_plan.template]
    places = _assign_workers(names, len(layers))
    before = bool(costs.extra_ns[:, 0].any())
    first, end = int(before), int(before) + sum(layers)
    counts = np.array([max(min(b, end) - max(a, first), 0) for a, b in cuts], dtype=np.int64)
    # A deviation from the modelled stage time belongs to the stage's workers, so it moves with
    # them.
    new_ns = costs.times_ns(counts) / costs.deviation() * costs.deviation()[:, places]
    changed = Changed(
        places,
        dict(zip(costs.passes, new_ns / np.maximum(costs.level_ns[:, places], 1.0), strict=True)),
        counts / costs.layers,
    )
    times = problem.replayed.over_steps(
        lambda group: launched_step_times(group, changed.replacement(group))
    )
    recorded_s, after_s = np.mean(times, axis=0).tolist()
    gain = (recorded_s - after_s) / problem.now_s
    speeds = problem.session.speeds.min(axis=0)
    return PlannedTemplate(
        layers=StageLayers(layers, tuple(counts.tolist())),
        stage_ms=StageTimes(
            today=tuple((costs.level_ns.sum(axis=0) * _MS_PER_NS / speeds).tolist()),
            template=tuple((new_ns.sum(axis=0) * _MS_PER_NS / speeds[places]).tolist()),
        ),
        worker_of_stage=tuple(places.tolist()),
        speed_of_worker=tuple(speeds.tolist()),
        embedding=costs.embedding_ns >= _MENTIONED_FROM * costs.median_layer_ns,
        head=costs.head_ns >= _MENTIONED_FROM * costs.median_layer_ns,
        microbatches=spec.microbatches,
        proven=found_plan.optimal,
        gap=found_plan.gap,
        predicted_step_time=problem.now_s * (1 - gain),
        predicted_gain=gain,
        at_most=problem.doubted or not costs.separable,
    )


def _assign_workers(names: list[str], stages: int) -> IntArray:
    """Return for each new stage the present stage number of the workers that will run it.

    Slow workers go to the stages that the template gives them; healthy workers keep their stage if
    it is free.
    """
    slow = {f"stage {stage}'s worker": stage for stage in range(stages)}
    places = [slow.get(name) for name in names]
    free = [stage for stage in range(stages) if stage not in places]
    for position, place in enumerate(places):
        if place is None and position in free:
            places[position] = position
            free.remove(position)
    return np.array([free.pop(0) if place is None else place for place in places])


@dataclass(frozen=True, slots=True, eq=False)
class Changed:
    """Changes of a session's durations by a template."""

    places: IntArray  # (pp,): for each stage, today's stage of its workers
    # By computation type, shape (pp,): time of each new stage ÷ time of its workers today.
    passes: Mapping[str, FloatArray]
    by_layers: FloatArray  # (pp,): layers of each stage ÷ its layers today

    def replacement(self, group: ShapeGroup) -> Replacement:
        """Return the durations of an operation group under the template."""
        layout, nodes = group.layout, group.layout.nodes
        recorded = group.durations.recorded_ns
        at = {
            key: node
            for node, key in enumerate(
                zip(nodes.op.tolist(), nodes.pp.tolist(), nodes.order.tolist(), strict=True)
            )
        }
        factors: dict[int, FloatArray] = {}
        for name, factor in self.passes.items():
            factors |= dict.fromkeys(layout.codes(name), factor)
        moves = set(factors)
        factors |= dict.fromkeys(layout.codes(*BY_LAYERS), self.by_layers)
        changed = [
            (node, at.get((op, int(self.places[stage]), order), node) if op in moves else node)
            for (op, stage, order), node in at.items()
            if op in factors
        ]
        own, sources = (list(part) for part in zip(*changed, strict=True))
        factor = np.array(
            [factors[int(nodes.op[node])][nodes.pp[node]] for node in own], dtype=np.float64
        )
        return Replacement(
            np.array(own), lambda steps: recorded[sources, steps] * factor[:, None, None]
        )

"""Parts of the pages of plans: templates drawn over layers and devices, times, sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.analysis.json_text import plain
from app.analysis.planning.document import (
    FoldedCluster,
    FoundTemplate,
    NoAnswer,
    PlanDocument,
    PlannedStage,
    SimulatedIteration,
)
from app.analysis.planning.job.document import JobDocument, JobStageDocument
from app.analysis.planning.job.spec import Parallelism, Recompute
from app.plans.read import RequestedPlan
from app.web.format import NBSP, percent, plural, seconds

MS: Final = 1e-3
GIB: Final = 2**30
# Number of device colors in tokens.css. Further types share these colors; the page also names every
# type.
COLORS: Final = 5
# Position of a block, in per cent, beyond which its label is drawn to the left of the block.
_LATE: Final = 72.0
_TICKS: Final = 6
# Minimum distance between the last two ticks, as a share of the distance between ticks.
_ROOM: Final = 0.9


@dataclass(frozen=True, slots=True)
class StageBlock:
    """Bar of one stage's layers, in per cent of all layers."""

    left: float
    width: float
    color: int
    label: str

    @property
    def late(self) -> bool:
        """Return whether the label is drawn to the left of the block."""
        return self.left > _LATE


@dataclass(frozen=True, slots=True)
class StageRow:
    """Row of one stage of the template; shares are per cent of the widest bar."""

    number: int
    color: int
    devices: str
    place: str
    block: StageBlock
    time_share: float
    time_text: str
    memory_share: float | None
    memory_text: str
    idle_text: str


@dataclass(frozen=True, slots=True)
class MethodRow:
    """Row of a method's template, or of the reason why the method has none."""

    name: str
    own: bool
    share: float = 0.0
    simulated: str = ""
    over: str = ""
    t_std: str = ""
    t_oobleck: str = ""
    stages: str = ""
    planned: str = ""
    remark: str = ""
    reason: str = ""
    blocks: tuple[StageBlock, ...] = ()


def device_names(requested: RequestedPlan) -> list[str]:
    """Return the device types of a specification; their order determines their colors."""
    return [device.type for device in requested.devices]


def cluster_text(requested: RequestedPlan) -> str:
    """Return the cluster as text, for example ``2 × 4 V100, 2 × 4 A6000``."""
    return ", ".join(
        f"{device.nodes}{NBSP}×{NBSP}{device.gpus_per_node} {device.type}"
        for device in requested.devices
    )


def blocks_of(
    stages: Sequence[PlannedStage], layers: int, names: Sequence[str]
) -> tuple[StageBlock, ...]:
    """Return the stages of a template as bars."""
    return tuple(_block(stage, layers, names) for stage in stages)


def _block(stage: PlannedStage, layers: int, names: Sequence[str]) -> StageBlock:
    first, last = stage.layers
    return StageBlock(
        left=round(100 * first / layers, 3),
        width=round(100 * (last + 1 - first) / layers, 3),
        color=color_of(stage.device, names),
        label=f"{first}–{last}" if last > first else str(first),
    )


def color_of(device: str, names: Sequence[str]) -> int:
    """Return the number of a device type's color, counted from 1."""
    return names.index(device) % COLORS + 1 if device in names else 1


def schedule_data(
    stages: Sequence[PlannedStage | JobStageDocument],
    timeline: SimulatedIteration,
    names: Sequence[str],
) -> dict[str, Any]:
    """Return the data from which the page draws the executed schedule of a pipeline."""
    return {
        "iteration_ms": timeline.iteration_time_ms,
        "starts": plain(timeline.starts),
        "stages": [
            {
                "forward_ms": stage.forward_ms,
                "backward_ms": stage.backward_ms,
                "color": color_of(stage.device, names),
                "name": f"{number} · {stage.gpus} × {stage.device}",
                "idle": idle,
            }
            for number, (stage, idle) in enumerate(zip(stages, timeline.bubble, strict=True))
        ],
    }


def layer_ticks(layers: int) -> tuple[tuple[float, str], ...]:
    """Return the ticks of the layer axis: position in per cent, and text."""
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500) if layers / s <= _TICKS)
    numbers = [n for n in range(0, layers + 1, step) if n == 0 or layers - n >= _ROOM * step]
    return tuple((round(100 * n / layers, 3), str(n)) for n in [*numbers, layers])


def stage_rows(
    document: PlanDocument, timeline: SimulatedIteration, names: Sequence[str]
) -> tuple[StageRow, ...]:
    """Return the rows of the template's stages."""
    stages = document.stages
    longest = max(stage.time_ms for stage in stages)
    most = max(stage.memory_bytes for stage in stages)
    return tuple(
        StageRow(
            number=number,
            color=color_of(stage.device, names),
            devices=" + ".join(f"{at.gpus}{NBSP}×{NBSP}{at.device}" for at in stage.places),
            place=f"{len(stage.replicas)} nodes, shared by speed"
            if stage.replicas
            else f"node {stage.node}",
            block=_block(stage, document.layers, names),
            time_share=100 * stage.time_ms / longest,
            time_text=milliseconds(stage.time_ms),
            memory_share=min(100 * stage.memory_bytes / whole, 100.0)
            if (whole := stage.memory_limit_bytes or most)
            else None,
            memory_text=f"{stage.memory_bytes / GIB:.1f}"
            + (
                ""
                if stage.memory_limit_bytes is None
                else f" of {stage.memory_limit_bytes / GIB:.3g}"
            ),
            idle_text=percent(idle),
        )
        for number, (stage, idle) in enumerate(zip(stages, timeline.bubble, strict=True))
    )


def milliseconds(value: float) -> str:
    """Return a time in milliseconds with three significant digits, without the unit."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits are enough


METHOD_NAMES: Final = {
    "optimal": "Optimal",
    "ditto": "Ditto",
    "greedy": "Greedy",
    "exhaustive": "Exhaustive",
}


def method_rows(document: PlanDocument, names: Sequence[str]) -> tuple[MethodRow, ...]:
    """Return the rows of the plan's method (first) and of the methods compared with it."""
    templates: dict[str, FoundTemplate] = {document.method: document, **document.others}
    simulated = [other.iteration_time_ms.simulated for other in templates.values()]
    rows = [
        _method_row(name, other, simulated, names, own=name == document.method)
        for name, other in templates.items()
    ]
    rows += [
        MethodRow(METHOD_NAMES[name], own=False, reason=other.reason)
        for name, other in document.comparison.items()
        if isinstance(other, NoAnswer)
    ]
    return tuple(rows)


def _method_row(
    name: str,
    other: FoundTemplate,
    simulated: Sequence[float],
    names: Sequence[str],
    *,
    own: bool,
) -> MethodRow:
    times = other.iteration_time_ms
    over = times.simulated / min(simulated) - 1
    remarks = [] if other.folding is None else [_folded(other.folding)]
    if not other.fits_memory:
        remarks.append("does not fit the memory")
    if not other.contiguous_nodes:
        remarks.append("stages of one node do not follow each other")
    return MethodRow(
        name=METHOD_NAMES[name],
        own=own,
        share=100 * times.simulated / max(simulated),
        simulated=seconds(times.simulated * MS),
        over=f"+{percent(over)}" if over else "",
        t_std=seconds(times.t_std * MS),
        t_oobleck="" if times.t_oobleck is None else seconds(times.t_oobleck * MS),
        stages=str(len(other.stages)),
        planned=seconds(other.planning_time_s),
        remark=", ".join(remarks),
        blocks=blocks_of(other.stages, other.layers, names),
    )


def _folded(folding: FoldedCluster) -> str:
    """Return the virtual cluster to which Ditto folded the devices as text."""
    weakest, nodes = folding.weakest, plural(folding.virtual_nodes, "node")
    worth = [f"a {name} as {n}" for name, n in folding.factors.items() if name != weakest]
    counted = f" ({', '.join(worth)})" if worth else ""
    return f"folded into {nodes} of {folding.virtual_gpus_per_node} {weakest}{counted}"


def alternative_rows(document: PlanDocument, names: Sequence[str]) -> tuple[MethodRow, ...]:
    """Return the rows of near-optimal templates, fastest executed template first."""
    others = document.alternatives
    longest = max((other.iteration_time_ms.simulated for other in others), default=0.0)
    return tuple(
        MethodRow(
            name=f"{rank}",
            own=other.stages == document.stages,
            share=100 * other.iteration_time_ms.simulated / longest,
            simulated=seconds(other.iteration_time_ms.simulated * MS),
            over=_difference(document.over(other)),
            t_std=seconds(other.iteration_time_ms.t_std * MS),
            stages=str(len(other.stages)),
            blocks=blocks_of(other.stages, document.layers, names),
        )
        for rank, other in enumerate(others, 1)
    )


def _difference(over: float) -> str:
    text = percent(over, 2)
    if not any(digit in text for digit in "123456789"):
        return "the same"
    return text if over < 0 else f"+{text}"


def idle_shares(document: PlanDocument, timeline: SimulatedIteration) -> tuple[float, float, float]:
    """Return the idle share of the iteration of all GPUs in stages, and the stages' min and max."""
    bubbles = timeline.bubble
    gpus = [sum(at.gpus for at in stage.places) for stage in document.stages]
    whole = sum(b * g for b, g in zip(bubbles, gpus, strict=True)) / sum(gpus)
    return whole, min(bubbles), max(bubbles)


def plan_name(name: str | None, layers: int, gpus: int) -> str:
    """Return the name of a plan; without a name, its numbers of layers and GPUs as text."""
    return name or f"{plural(layers, 'layer')} on {plural(gpus, 'GPU')}"


@dataclass(frozen=True, slots=True)
class RunningRow:
    """Row of the comparison between the running job and its plan."""

    way: str
    sizes: str
    iteration: str
    against: str


def sizes_text(sizes: Parallelism) -> str:
    """Return parallel sizes as text, for example ``dp 4 × pp 8 × tp 8``."""
    return f"dp{NBSP}{sizes.dp} × pp{NBSP}{sizes.pp} × tp{NBSP}{sizes.tp}"


def rest_text(sizes: Parallelism) -> str:
    """Return the other sizes as text: microbatch, and if used chunks and recomputation."""
    chunks = f", {sizes.interleave} chunks" if sizes.interleave > 1 else ""
    mode = sizes.recompute
    recompute = "" if mode is Recompute.NONE else f", recompute {mode.value}"
    return f"microbatch {sizes.microbatch}{chunks}{recompute}"


def sizes_and_rest(sizes: Parallelism) -> str:
    """Return all parallel sizes as text."""
    return f"{sizes_text(sizes)}, {rest_text(sizes)}"


def against_text(relative: float) -> str:
    """Return a ratio of times as a signed difference in per cent."""
    return ("+" if relative > 1 else "") + percent(relative - 1)


def running_title(document: JobDocument) -> str:
    """Return the plan's saving over the running job as a title; empty without a running job."""
    runs = document.as_it_runs
    if runs is None:
        return ""
    if runs.relative <= 1:
        return "No plan is faster than the job as it runs"
    return f"The best plan takes {percent(1 - 1 / runs.relative)} less than the job as it runs"


def running_rows(document: JobDocument) -> tuple[RunningRow, ...]:
    """Return the rows of the running job, of its sizes with the best cut, and of the plan."""
    runs, best_ms = document.as_it_runs, document.iteration_time_ms.simulated
    if runs is None:
        return ()
    same = document.comparison.get("same_sizes")
    named_sizes = (("dp", runs.dp), ("pp", runs.pp), ("tp", runs.tp))
    sizes = " × ".join(f"{name}{NBSP}{size}" for name, size in named_sizes if size is not None)
    rows = [RunningRow("As it runs, measured", sizes, seconds(runs.iteration_time_ms * MS), "")]
    if same is not None and same.parallelism is not None and same.iteration_time_ms is not None:
        ms = same.iteration_time_ms.simulated
        rows.append(
            RunningRow(
                "The same sizes, the best cut",
                sizes_and_rest(same.parallelism),
                seconds(ms * MS),
                against_text(ms / runs.iteration_time_ms),
            )
        )
    elif same is not None:
        rows.append(RunningRow("The same sizes", "do not fit by what is predicted", "", ""))
    own = sizes_and_rest(document.parallelism)
    against = against_text(best_ms / runs.iteration_time_ms)
    rows.append(RunningRow("Best as measured", own, seconds(best_ms * MS), against))
    return tuple(rows)

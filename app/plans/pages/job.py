"""Page sections and files of a job's plan: pipelines, memory, other sizes, losses, flags."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.analysis.json_text import plain
from app.analysis.planning.document import SimulatedIteration
from app.analysis.planning.job.document import (
    AfterLossDocument,
    JobAlternative,
    JobDocument,
    JobStageDocument,
    JobTemplateDocument,
    SimplerJob,
)
from app.plans.pages.parts import (
    GIB,
    MS,
    RunningRow,
    StageBlock,
    against_text,
    color_of,
    layer_ticks,
    milliseconds,
    rest_text,
    running_rows,
    running_title,
    schedule_data,
    sizes_and_rest,
    sizes_text,
)
from app.web.format import NBSP, percent, plural, rough_percent, seconds
from app.web.parts import Fact
from app.web.tables import Table

# Parts of memory and parts of time, each in the order of their colors.
MEMORY_PARTS: Final = ("weights", "gradients", "optimizer", "activations", "other")
TIME_PARTS: Final = ("computing", "tensor_parallel", "transfers", "synchronization", "optimizer")
# Maximum number of pipelines and of stages on the page; the plan's files list all of them.
_MOST_ROWS: Final = 32
# Width, height and margin of the scatter plot of sizes, in units of its view box.
_WIDE: Final = 360
_HIGH: Final = 200
_EDGE: Final = 32
_EQUAL: Final = 1e-9


@dataclass(frozen=True, slots=True)
class JobStageRow:
    """Row of a stage of a template; shares are per cent."""

    number: int
    color: int
    devices: str
    layers: str
    time_text: str
    parts: tuple[StageBlock, ...]
    memory_text: str


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """Row of pipelines that are equal."""

    count: int
    nodes: str
    blocks: tuple[StageBlock, ...]
    label: str
    microbatches: str
    time_text: str
    stages: tuple[JobStageRow, ...]


@dataclass(frozen=True, slots=True)
class SizesRow:
    """Row of a plan with other sizes, and its position in the scatter plot of time and memory."""

    own: bool
    sizes: str
    simulated: str
    over: str
    memory: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class SimplerRow:
    """Row of a simpler way to run the job."""

    way: str
    sizes: str
    simulated: str
    over: str


@dataclass(frozen=True, slots=True)
class LossRow:
    """Row of the plan after a loss of nodes."""

    lost: str
    iteration: str
    over: str
    pipelines: str
    moved: str


@dataclass(frozen=True, slots=True)
class JobSections:
    """Page sections of a whole job's plan."""

    running_title: str
    running: tuple[RunningRow, ...]
    session: str | None
    title: str
    ticks: tuple[tuple[float, str], ...]
    pipelines: tuple[PipelineRow, ...]
    idle_devices: str
    legend: tuple[tuple[int, str], ...]
    memory_legend: tuple[tuple[int, str], ...]
    time_title: str
    time_parts: tuple[StageBlock, ...]
    time_legend: tuple[tuple[int, str], ...]
    schedule_title: str
    schedule_note: str
    alternatives: tuple[SizesRow, ...]
    wide: int
    high: int
    ends: tuple[tuple[int, int, str, str], ...]
    simpler: tuple[SimplerRow, ...]
    losses: tuple[LossRow, ...]
    flags: tuple[tuple[str, str, tuple[str, ...]], ...]
    text: str
    data: Mapping[str, Any]


def job_sentence(document: JobDocument) -> str:
    """Return the verdict on a plan: parallel sizes, iteration time and proof."""
    text = f"{sizes_text(document.parallelism)}: "
    text += f"{seconds(document.iteration_time_ms.simulated * MS)} an iteration"
    over = document.iteration_time_ms.t_std / document.lower_bound_ms - 1
    if document.optimal and over <= _EQUAL:
        return f"{text}, proven optimal by t_std"
    if document.optimal:
        return f"{text}, the fastest to execute within 1{NBSP}% of the proven least t_std"
    return f"{text}, at most {rough_percent(over)} above what is possible by t_std"


def job_facts(document: JobDocument) -> tuple[Fact, ...]:
    """Return the figures at the top of the page."""
    cost = document.cost_per_billion_tokens
    limited = any(
        stage.memory_limit_bytes is not None
        for template in document.templates
        for stage in template.stages
    )
    return (
        Fact(
            "Iteration",
            seconds(document.iteration_time_ms.simulated * MS),
            f"executed; t_std {seconds(document.iteration_time_ms.t_std * MS)}",
        ),
        Fact("Sizes", sizes_text(document.parallelism), rest_text(document.parallelism)),
        Fact("Tokens a second", f"{document.tokens_per_s:,.0f}"),
        Fact(
            "Model FLOPs utilization",
            percent(document.model_flops_utilization),
            _utilization_note(document),
        ),
        Fact(
            "GPU-hours",
            f"{document.gpu_hours_per_billion_tokens:,.0f}",
            "a billion tokens" if cost is None else f"a billion tokens, cost {cost:,.0f}",
        ),
        Fact(
            "Memory",
            f"{document.memory.total / GIB:.1f}{NBSP}GiB",
            "of the fullest GPU, margin counted" if limited else "of the fullest GPU, no limit",
        ),
        Fact(
            "Proof",
            "Gap 0" if document.optimal else f"Gap {percent(document.gap)}",
            f"no plan takes under {seconds(document.lower_bound_ms * MS)}",
        ),
        Fact("Planned in", seconds(document.planning_time_s)),
    )


def _utilization_note(document: JobDocument) -> str:
    """Return why the utilization is below the share of time in which the GPUs compute."""
    computing = document.time.computing
    pace = document.model_flops_utilization / computing if computing else 0.0
    return f"they compute {percent(computing, 0)} of the time, at {percent(pace, 0)} of their peak"


def job_sections(
    document: JobDocument, timeline: SimulatedIteration, names: Sequence[str]
) -> JobSections:
    """Return the page sections of a plan; `names` are the device types in color order."""
    idle = {name: count for name, count in document.idle.items() if count}
    slowest = max(document.pipelines, key=lambda pipeline: pipeline.time_ms)
    stages = document.templates[slowest.template].stages
    bubble = sum(timeline.bubble) / len(timeline.bubble)
    used = {stage.device for template in document.templates for stage in template.stages}
    time = document.time
    return JobSections(
        running_title=running_title(document),
        running=running_rows(document),
        session=None if document.as_it_runs is None else document.as_it_runs.session,
        title=_title(document),
        ticks=layer_ticks(document.layers + 2),
        pipelines=_pipeline_rows(document, names),
        idle_devices=", ".join(f"{count} × {name}" for name, count in idle.items()),
        legend=tuple((color_of(name, names), name) for name in names if name in used),
        memory_legend=tuple((n, _words(part)) for n, part in enumerate(MEMORY_PARTS, 1)),
        time_title=f"GPUs compute {rough_percent(time.computing)} of the iteration and wait "
        f"{rough_percent(time.bubble)} of it",
        time_parts=_stacked([getattr(time, part) for part in TIME_PARTS], 1.0),
        time_legend=tuple(
            (n, f"{_words(part)} {percent(getattr(time, part))}")
            for n, part in enumerate(TIME_PARTS, 1)
        ),
        schedule_title=f"GPUs of the slowest pipeline idle {percent(bubble)} of its schedule",
        schedule_note="One iteration of the slowest pipeline; light: forward, dark: backward, "
        "hatched: bubble"
        if timeline.starts
        else "Interleaved, or too many computations to draw",
        alternatives=_alternative_rows(document),
        wide=_WIDE,
        high=_HIGH,
        ends=_axis_labels(document.alternatives),
        simpler=tuple(_simpler_row(name, other) for name, other in document.comparison.items()),
        losses=tuple(_loss_rows(document)),
        flags=tuple((item.framework, item.flags, item.unsaid) for item in document.flags),
        text=document.flags[0].flags,
        data=schedule_data(stages, timeline, names),
    )


def _words(part: str) -> str:
    return part.replace("tensor_parallel", "tensor-parallel communication")


def _title(document: JobDocument) -> str:
    count = len(document.pipelines)
    shares = {pipeline.microbatches for pipeline in document.pipelines}
    if len(document.templates) == 1 and len(shares) == 1:
        each = plural(shares.pop(), "microbatch", "microbatches")
        return f"{plural(count, 'pipeline')} alike, {each} each"
    return f"{plural(count, 'pipeline')}, {min(shares)} to {max(shares)} microbatches each"


def _pipeline_rows(document: JobDocument, names: Sequence[str]) -> tuple[PipelineRow, ...]:
    counts: dict[tuple[int, int], list[float]] = {}
    for pipeline in document.pipelines:
        key = pipeline.template, pipeline.microbatches
        counts.setdefault(key, []).append(pipeline.time_ms)
    rows = []
    for (number, microbatches), times in list(counts.items())[:_MOST_ROWS]:
        template = document.templates[number]
        layers = document.layers + 2
        nodes = " + ".join(f"{count}{NBSP}×{NBSP}{name}" for name, count in template.nodes.items())
        share = template.pipelines_per_node_set
        rows.append(
            PipelineRow(
                count=len(times),
                nodes=f"{nodes} for {share}" if share > 1 else nodes,
                blocks=tuple(
                    StageBlock(
                        round(100 * stage.layers[0] / layers, 3),
                        round(100 * (stage.layers[1] + 1 - stage.layers[0]) / layers, 3),
                        color_of(stage.device, names),
                        _blocks_of(stage, document.layers),
                    )
                    for stage in template.stages
                ),
                label=plural(len(template.stages), "stage"),
                microbatches=f"{microbatches:,}",
                time_text=seconds(max(times) * MS),
                stages=_stages(template, document.layers, names),
            )
        )
    return tuple(rows)


def _blocks_of(stage: JobStageDocument, count: int) -> str:
    """Return the numbers of a stage's blocks; layer 0 is the embedding, the last one the head."""
    return f"{max(stage.layers[0], 1)}–{min(stage.layers[1], count)}"


def _stages(
    template: JobTemplateDocument, count: int, names: Sequence[str]
) -> tuple[JobStageRow, ...]:
    return tuple(
        JobStageRow(
            number=number,
            color=color_of(stage.device, names),
            devices=f"{stage.gpus}{NBSP}×{NBSP}{stage.device}",
            layers=_blocks_of(stage, count),
            time_text=milliseconds(stage.time_ms),
            parts=_stacked(
                [getattr(stage.memory, part) for part in MEMORY_PARTS],
                stage.memory_limit_bytes or stage.memory.total,
            ),
            memory_text=f"{stage.memory.total / GIB:.1f}"
            + (
                ""
                if stage.memory_limit_bytes is None
                else f" of {stage.memory_limit_bytes / GIB:.3g}"
            ),
        )
        for number, stage in enumerate(template.stages[:_MOST_ROWS])
    )


def _stacked(values: Sequence[float], whole: float) -> tuple[StageBlock, ...]:
    """Return the parts of a stacked bar."""
    blocks, left = [], 0.0
    for color, value in enumerate(values, 1):
        width = 100 * value / whole if whole else 0.0
        blocks.append(StageBlock(round(left, 3), round(width, 3), color, ""))
        left += width
    return tuple(blocks)


def _alternative_rows(document: JobDocument) -> tuple[SizesRow, ...]:
    others = document.alternatives
    if not others:
        return ()
    times = [other.iteration_time_ms.simulated for other in others]
    memory = [other.memory_bytes for other in others]

    def at(value: float, values: list[float], length: int) -> float:
        low, high = min(values), max(values)
        share = (value - low) / (high - low) if high > low else 0.5
        return round(_EDGE + share * (length - 2 * _EDGE), 1)

    return tuple(
        SizesRow(
            own=other.parallelism == document.parallelism,
            sizes=sizes_and_rest(other.parallelism),
            simulated=seconds(other.iteration_time_ms.simulated * MS),
            over="" if other.relative <= 1 else against_text(other.relative),
            memory=f"{other.memory_bytes / GIB:.1f}",
            x=at(other.iteration_time_ms.simulated, times, _WIDE),
            y=_HIGH - at(other.memory_bytes, memory, _HIGH),
        )
        for other in others
    )


def _axis_labels(others: Sequence[JobAlternative]) -> tuple[tuple[int, int, str, str], ...]:
    """Return the labels at the ends of the scatter plot's axes, as (x, y, anchor, text)."""
    if not others:
        return ()
    times = [other.iteration_time_ms.simulated * MS for other in others]
    memory = [other.memory_bytes / GIB for other in others]
    return (
        (_EDGE, _HIGH - 4, "start", seconds(min(times))),
        (_WIDE - 4, _HIGH - 4, "end", seconds(max(times))),
        (4, _HIGH - _EDGE, "start", f"{min(memory):.1f}{NBSP}GiB"),
        (4, 12, "start", f"{max(memory):.1f}{NBSP}GiB"),
    )


def _simpler_row(name: str, other: SimplerJob) -> SimplerRow:
    way = name.replace("_", " ")
    if other.parallelism is None or other.iteration_time_ms is None or other.relative is None:
        return SimplerRow(way, "nothing fits", "", "")
    return SimplerRow(
        way=way,
        sizes=sizes_and_rest(other.parallelism),
        simulated=seconds(other.iteration_time_ms.simulated * MS),
        over=against_text(other.relative),
    )


def _loss_rows(document: JobDocument) -> list[LossRow]:
    rows = []
    for loss in document.after_losses:
        lost = f"{loss.nodes}{NBSP}×{NBSP}{loss.device}"
        if loss.iteration_time_ms is None:
            rows.append(LossRow(lost, "the rest does not hold the model", "", "", ""))
            continue
        rows.append(
            LossRow(
                lost=lost,
                iteration=seconds(loss.iteration_time_ms * MS),
                over=against_text(loss.iteration_time_ms / document.iteration_time_ms.t_std),
                pipelines=f"{loss.dp}, {loss.kept} as they are",
                moved=f"{loss.moved_bytes / GIB:,.0f}" if loss.moved_bytes else "none",
            )
        )
    return rows


def _pipelines_csv(document: JobDocument) -> Table:
    return Table(
        ("pipeline", "template", "microbatches", "time_ms", "nodes"),
        (
            (
                number,
                pipeline.template,
                pipeline.microbatches,
                pipeline.time_ms,
                " ".join(f"{node.device}:{node.node}" for node in pipeline.nodes),
            )
            for number, pipeline in enumerate(document.pipelines)
        ),
    )


def _memory_csv(document: JobDocument) -> Table:
    return Table(
        (
            "template", "stage", "device", "gpus", "first_layer", "last_layer", "time_ms",
            "weights_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes",
            "other_bytes", "margin_bytes", "memory_limit_bytes",
        ),
        (
            (
                number, position, stage.device, stage.gpus, *stage.layers, stage.time_ms,
                stage.memory.weights, stage.memory.gradients, stage.memory.optimizer,
                stage.memory.activations, stage.memory.other, stage.memory.margin,
                stage.memory_limit_bytes,
            )
            for number, template in enumerate(document.templates)
            for position, stage in enumerate(template.stages)
        ),
    )  # fmt: skip


def _sizes_csv(document: JobDocument) -> Table:
    return Table(
        (
            "tp", "pp", "dp", "microbatch", "recompute", "interleave", "simulated_ms", "t_std_ms",
            "memory_bytes",
        ),
        (
            (
                other.parallelism.tp, other.parallelism.pp, other.parallelism.dp,
                other.parallelism.microbatch, other.parallelism.recompute.value,
                other.parallelism.interleave, other.iteration_time_ms.simulated,
                other.iteration_time_ms.t_std, other.memory_bytes,
            )
            for other in document.alternatives
        ),
    )  # fmt: skip


def _simpler_csv(document: JobDocument) -> Table:
    return Table(
        ("way", "simulated_ms", "t_std_ms", "relative"),
        (
            (
                name,
                other.iteration_time_ms and other.iteration_time_ms.simulated,
                other.iteration_time_ms and other.iteration_time_ms.t_std,
                other.relative,
            )
            for name, other in document.comparison.items()
        ),
    )


def _running_csv(document: JobDocument) -> Table:
    runs, same = document.as_it_runs, document.comparison.get("same_sizes")
    times = same and same.iteration_time_ms
    ways = (
        ("as_it_runs", runs and runs.iteration_time_ms),
        ("same_sizes", times and times.simulated),
        ("plan", document.iteration_time_ms.simulated),
    )
    return Table(("way", "iteration_ms"), ways)


# Files of a whole job's plan, by name.
JOB_FILES: Final[Mapping[str, Callable[[JobDocument], Table | str]]] = {
    "plan.json": lambda document: json.dumps(plain(document), indent=1, allow_nan=False) + "\n",
    "pipelines.csv": _pipelines_csv,
    "memory.csv": _memory_csv,
    "sizes.csv": _sizes_csv,
    "simpler.csv": _simpler_csv,
    "running.csv": _running_csv,
    "losses.csv": lambda document: Table.of(AfterLossDocument, document.after_losses),
}

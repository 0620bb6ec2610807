"""Pages of plans: routes, the form of a new plan, and the files of a plan."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import yaml
from fastapi import APIRouter, Request
from fastapi.responses import Response
from markupsafe import Markup

from app.access.guard import RequestContainer
from app.analysis.json_text import plain
from app.analysis.planning.document import FoundTemplate, NoAnswer
from app.analysis.planning.spec import METHODS, OBJECTIVES, Method, Objective
from app.analysis.planning.transformer import CATALOGUE, GIB
from app.errors import Fault, NotFoundError
from app.plans.pages.job import JOB_FILES
from app.plans.pages.parts import METHOD_NAMES, MS, plan_name
from app.plans.pages.plan import PROVEN, STATES, plan_page
from app.plans.read import PLANS, PlanSummary, get_plan
from app.plans.requests import JobResult, PlanOutline, PlanResult
from app.plans.specs.spec import DEFAULT_TIME_LIMIT_S, MOST_TIME_LIMIT_S
from app.platform.database.states import PlanState
from app.web import html, moments
from app.web.addresses import server_address
from app.web.format import percent, seconds
from app.web.lists import read
from app.web.pages import Pages
from app.web.parts import StateLabel
from app.web.tables import Shown, Table, csv_file, drawn

METHOD_NOTES: Final[Mapping[Method, str]] = {
    "optimal": "searches all templates and proves how good its plan is",
    "ditto": "folds the cluster into a uniform one and plans that",
    "greedy": "as Ditto, and fills the stages with the strongest devices first",
    "exhaustive": "Oobleck’s divide and conquer, for small clusters",
}
OBJECTIVE_NAMES: Final[Mapping[Objective, str]] = {
    "simulated": "Executed time",
    "t_std": "t_std",
    "t_oobleck": "t_oobleck",
}
OBJECTIVE_NOTES: Final[Mapping[Objective, str]] = {
    "simulated": "1F1B, executed with its transfers; the choice for training",
    "t_std": "ΣL + (N − 1)·max L, the estimate of Alpa and Metis; exact",
    "t_oobleck": "Oobleck’s estimate, to compare with its plans; exact",
}
# Column headings of the form's table of devices, by key.
DEVICE_COLUMNS: Final[Mapping[str, str]] = {
    "type": "Type",
    "nodes": "Nodes",
    "gpus_per_node": "GPUs a node",
    "speed": "Speed",
    "memory_bytes": "GiB a GPU",
}
PRESETS: Final[Mapping[str, Any]] = {
    "devices": [
        {
            "name": device.name,
            "memory_bytes": round(device.memory_bytes),
            "peak_tflops": device.peak_tflops,
        }
        for device in CATALOGUE
    ]
}

DeviceRow = Mapping[str, str]  # cell by key


def device_rows(spec: Mapping[str, Any]) -> tuple[DeviceRow, ...]:
    """Return the device types of a specification as rows of the form's table."""
    return tuple(
        {key: _cell(key, device.get(key)) for key in DEVICE_COLUMNS} for device in spec["devices"]
    )


def _cell(key: str, value: object) -> str:
    if value is None:
        return ""
    return f"{float(str(value)) / GIB:.6g}" if key == "memory_bytes" else str(value)


@dataclass(frozen=True, slots=True)
class JobPreset:
    """Published model on a cluster, offered as a specification to start from."""

    name: str
    source: str
    spec: str


_SPEC: Final = """\
# {source}
model:
  transformer: {{{shape}}}
devices:
{devices}
global_batch: {batch}    # sequences
sequence: {sequence}    # tokens of one
network: {{inter_node_gbytes_per_s: {gbytes}}}    # of a whole node
# parallelism: {{tp: 8, pp: 4}}    # fixes any of tp, pp, dp, microbatch, recompute, interleave
losses: 1    # nodes that may be lost
"""


def _preset(
    name: str, source: str, shape: str, devices: str, sizes: tuple[int, int, int]
) -> JobPreset:
    batch, sequence, gbytes = sizes
    text = _SPEC.format(
        source=source, shape=shape, devices=devices, batch=batch, sequence=sequence, gbytes=gbytes
    )
    return JobPreset(name, source, text)


JOB_PRESETS: Final = {
    "gpt-145b": _preset(
        "GPT 145.6 B on 1,536 A100",
        "Narayanan et al., arXiv:2104.04473, table 1",
        "layers: 80, hidden: 12288, heads: 96, vocabulary: 51200, attention: unfused",
        "  - {type: A100, nodes: 192, gpus_per_node: 8}",
        (2304, 2048, 200),
    ),
    "llama-3-70b": _preset(
        "Llama 3 70 B on 128 H100",
        "Grattafiori et al., arXiv:2407.21783, table 3",
        "layers: 80, hidden: 8192, heads: 64, kv_heads: 8, intermediate: 28672, gated: true, "
        "vocabulary: 128000",
        "  - {type: H100, nodes: 16, gpus_per_node: 8}",
        (512, 8192, 400),
    ),
    "llama-3-8b-mixed": _preset(
        "Llama 3 8 B on A100 and H100",
        "Grattafiori et al., arXiv:2407.21783, table 3",
        "layers: 32, hidden: 4096, heads: 32, kv_heads: 8, intermediate: 14336, gated: true, "
        "vocabulary: 128000",
        "  - {type: A100, nodes: 4, gpus_per_node: 8}\n"
        "  - {type: H100, nodes: 4, gpus_per_node: 8}",
        (512, 4096, 200),
    ),
}


# Maximum number of plans on the page.
LISTED: Final = 100

FILE_HEADERS: Final = {"Cache-Control": "no-cache"}

EXAMPLE: Final = """\
# A transformer, whose layer times are predicted. Measured times go here in its place:
#   layers: [{forward_ms: 0.5, backward_ms: 1.4, parameter_bytes: 328e+6}, …]
# and, not indented, the type they were measured on: profiled_on: {type: V100}
model:
  transformer:
    layers: 32
    hidden: 4096
    heads: 32
    vocabulary: 50257
    sequence: 2048    # tokens
    microbatch: 1     # sequences in one
devices:
  - {type: V100, nodes: 2, gpus_per_node: 4}
  - {type: A100, nodes: 2, gpus_per_node: 4}
# of one iteration
microbatches: 32
# between two stages, decimal gigabytes a second; without it, transfers take no time
network: {intra_node_gbytes_per_s: 300, inter_node_gbytes_per_s: 25}
# allow_idle: true   # devices may be left out
# replicate: true    # a stage may run on several whole nodes
"""


@dataclass(frozen=True, slots=True)
class PlanForm:
    """Values of the form's fields."""

    name: str
    method: str
    objective: str
    time_limit_s: str
    spec: str
    devices: tuple[DeviceRow, ...]


EMPTY_FORM: Final = PlanForm(
    "",
    METHODS[0],
    OBJECTIVES[0],
    f"{DEFAULT_TIME_LIMIT_S:g}",
    EXAMPLE,
    device_rows(yaml.safe_load(EXAMPLE)),
)


def add_plan_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the pages of plans to the dashboard."""

    @routes.get("/plans")
    def plans_route(container: RequestContainer, of: str = "", preset: str = "") -> Response:
        form = EMPTY_FORM
        if preset in JOB_PRESETS:
            chosen = JOB_PRESETS[preset]
            devices = device_rows(yaml.safe_load(chosen.spec))
            form = replace(form, name=chosen.name, spec=chosen.spec, devices=devices)
        with pages.reading(container) as (tx, nav):
            if of:
                try:
                    view = get_plan(tx, uuid.UUID(of))
                    row = view.row
                    form = PlanForm(
                        row.name or "",
                        row.method,
                        row.objective,
                        f"{row.time_limit_s:g}",
                        yaml.safe_dump(
                            view.spec, sort_keys=False, default_flow_style=None, width=100
                        ),
                        device_rows(view.spec),
                    )
                except (ValueError, NotFoundError):
                    return pages.not_found(f"plan {of}", nav)
            rows, now = read(tx, PLANS, limit=LISTED), tx.now
        return pages.render(
            "plans/list.html",
            nav,
            now=now,
            form=form,
            plans=drawn(
                (
                    Shown("State", lambda row: html.state(_state(row)), of_cells="nowrap"),
                    Shown("Plan", _plan, of_cells="grow"),
                    Shown("Iteration", _iteration, classes="num"),
                    Shown("Others", _others, classes="num opt", of_cells="muted"),
                    Shown("Asked", lambda row: moments.ago(row.created_at, now), classes="num"),
                ),
                rows,
                csv="/plans.csv",
                classes="planned",
            ),
            methods=METHOD_NAMES,
            method_notes=METHOD_NOTES,
            objectives=OBJECTIVE_NAMES,
            objective_notes=OBJECTIVE_NOTES,
            device_columns=DEVICE_COLUMNS,
            catalogue=PRESETS,
            presets=JOB_PRESETS,
            most_s=MOST_TIME_LIMIT_S,
        )

    @routes.get("/plans/{plan}")
    def plan_route(container: RequestContainer, request: Request, plan: str) -> Response:
        with pages.reading(container) as (tx, nav):
            try:
                view = get_plan(tx, uuid.UUID(plan))
            except (ValueError, NotFoundError):
                return pages.not_found(f"plan {plan}", nav)
        page = plan_page(view)
        address = f"{server_address(request, container.settings)}/plans/{page.id}"
        return pages.render("plans/page.html", nav, page=page, now=page.now, address=address)

    _add_files(routes)


def _add_files(routes: APIRouter) -> None:
    @routes.get("/plans.csv")
    def plans_file_route(container: RequestContainer) -> Response:
        with container.reading() as tx:
            rows = read(tx, PLANS, limit=LISTED)
        return csv_file("paceline-plans.csv", Table.of(PlanSummary, rows))

    @routes.get("/plans/{plan}/{name}")
    def file_route(container: RequestContainer, plan: uuid.UUID, name: str) -> Response:
        with container.reading() as tx:
            view = get_plan(tx, plan)
        file_name = f"paceline-plan-{str(plan)[:8]}-{name}"
        if name == "faults.csv":
            return csv_file(file_name, Table.of(Fault, view.faults))
        made: Table | str
        if isinstance(view.result, JobResult) and name in JOB_FILES:
            made = JOB_FILES[name](view.result.plan)
        elif isinstance(view.result, PlanResult) and name in FILES:
            made = FILES[name](view.result)
        else:
            raise NotFoundError(f"There is no {name} of this plan.")
        if isinstance(made, Table):
            return csv_file(file_name, made)
        disposition = f'attachment; filename="{file_name}"'
        return Response(
            made,
            media_type="application/json",
            headers=FILE_HEADERS | {"Content-Disposition": disposition},
        )


def _outline(row: PlanSummary) -> PlanOutline | None:
    return row.outline if row.state == PlanState.PLANNED else None


def _state(row: PlanSummary) -> StateLabel:
    outline = _outline(row)
    return PROVEN if outline is not None and outline.optimal else STATES[row.state]


def _plan(row: PlanSummary) -> Markup:
    name = html.link(f"/plans/{row.id}", plan_name(row.name, row.layers, row.gpus))
    method = METHOD_NAMES[row.method]
    return name if row.method == METHODS[0] else name + " " + html.muted(method)


def _iteration(row: PlanSummary) -> str:
    outline = _outline(row)
    return "" if outline is None else seconds(outline.iteration_time_ms.simulated * MS)


def _others(row: PlanSummary) -> str:
    outline = _outline(row)
    return ", ".join(
        f"{METHOD_NAMES[name]} {'+' if value >= 0 else ''}{percent(value)}"
        for name, value in (outline.over.items() if outline is not None else ())
    )


def _template_csv(result: PlanResult) -> Table:
    return Table(
        (
            "stage", "first_layer", "last_layer", "device", "gpus", "node", "forward_ms",
            "backward_ms", "transfer_ms", "memory_bytes", "memory_limit_bytes", "idle_share",
        ),
        (
            (
                number, *stage.layers, stage.device, stage.gpus, stage.node, stage.forward_ms,
                stage.backward_ms, stage.transfer_ms, stage.memory_bytes,
                stage.memory_limit_bytes, idle,
            )
            for number, (stage, idle) in enumerate(
                zip(result.plan.stages, result.timeline.bubble, strict=True)
            )
        ),
    )  # fmt: skip


def _methods_csv(result: PlanResult) -> Table:
    answers = {result.plan.method: result.plan, **result.plan.comparison}
    return Table(
        (
            "method",
            "simulated_ms",
            "t_std_ms",
            "t_oobleck_ms",
            "stages",
            "planning_time_s",
            "reason",
        ),
        ((name, *_method_cells(other)) for name, other in answers.items()),
    )


def _method_cells(other: FoundTemplate | NoAnswer) -> tuple[object, ...]:
    if isinstance(other, NoAnswer):
        return (None, None, None, None, None, other.reason)
    times = other.iteration_time_ms
    return (
        *(times.simulated, times.t_std, times.t_oobleck),
        *(len(other.stages), other.planning_time_s, None),
    )


def _alternatives_csv(result: PlanResult) -> Table:
    return Table(
        ("rank", "simulated_ms", "t_std_ms", "stages"),
        (
            (
                rank,
                other.iteration_time_ms.simulated,
                other.iteration_time_ms.t_std,
                " | ".join(
                    f"{stage.layers[0]}-{stage.layers[1]} {stage.gpus} x {stage.device}"
                    for stage in other.stages
                ),
            )
            for rank, other in enumerate(result.plan.alternatives, 1)
        ),
    )


def _schedule_csv(result: PlanResult) -> Table:
    stages, starts = result.plan.stages, result.timeline.starts
    directions = (
        ()
        if starts is None
        else (
            ("forward", starts.forward, [stage.forward_ms for stage in stages]),
            ("backward", starts.backward, [stage.backward_ms for stage in stages]),
        )
    )
    return Table(
        ("stage", "direction", "microbatch", "start_ms", "duration_ms"),
        (
            (number, direction, microbatch, start, durations[number])
            for direction, of_stages, durations in directions
            for number, of_stage in enumerate(of_stages)
            for microbatch, start in enumerate(of_stage)
        ),
    )


FILES: Final[Mapping[str, Callable[[PlanResult], Table | str]]] = {
    "plan.json": lambda result: json.dumps(plain(result.plan), indent=1, allow_nan=False) + "\n",
    "template.csv": _template_csv,
    "methods.csv": _methods_csv,
    "alternatives.csv": _alternatives_csv,
    "schedule.csv": _schedule_csv,
}

"""Page of one plan, in every state of the plan."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from app.analysis.planning.document import PlanDocument, PlannedStage, SimulatedIteration
from app.analysis.planning.spec import METHODS
from app.plans.pages.job import JobSections, job_facts, job_sections, job_sentence
from app.plans.pages.parts import (
    GIB,
    METHOD_NAMES,
    MS,
    MethodRow,
    StageRow,
    alternative_rows,
    cluster_text,
    color_of,
    device_names,
    idle_shares,
    layer_ticks,
    method_rows,
    milliseconds,
    plan_name,
    schedule_data,
    stage_rows,
)
from app.plans.read import PlanView
from app.plans.requests import JobResult
from app.platform.database.states import PlanState
from app.web.format import NBSP, percent, plural, rough_percent, seconds
from app.web.parts import Fact, Row, StateLabel

STATES: Final = {
    PlanState.QUEUED: StateLabel("wait", "Waiting", 3),
    PlanState.PLANNING: StateLabel("run", "Planning", 3),
    PlanState.PLANNED: StateLabel("done", "Planned", 4),
    PlanState.INFEASIBLE: StateLabel("none", "No template", 2),
    PlanState.CANCELED: StateLabel("none", "Canceled", 4, quiet=True),
    PlanState.FAILED: StateLabel("fail", "Planning failed", 1),
}
PROVEN: Final = StateLabel("done", "Proven optimal", 4)

OBJECTIVE_WORDS: Final = {
    "simulated": "least time executed under 1F1B (simulated)",
    "t_std": "least ΣL + (N − 1)·max L (t_std), of equals the fastest executed",
    "t_oobleck": "least by Oobleck's estimate (t_oobleck), of equals the fastest executed",
}
JOB_WORDS: Final = "the whole job: least t_std of its slowest pipeline"
EXECUTED: Final = "simulated"
# Spread of stage times, as a share, up to which moving a layer gains nothing.
_EVEN: Final = 0.1


@dataclass(frozen=True, slots=True)
class Template:
    """Page sections of a template."""

    title: str
    note: str
    ticks: tuple[tuple[float, str], ...]
    stages: tuple[StageRow, ...]
    has_memory: bool
    idle_devices: str
    methods_title: str
    methods: tuple[MethodRow, ...]
    legend: tuple[tuple[int, str], ...]
    schedule_title: str
    schedule_note: str
    alternatives_title: str
    alternatives: tuple[MethodRow, ...]
    text: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PlanPage:
    """Page of a plan; `template` or `job` is None if the plan has no result of that kind."""

    id: uuid.UUID
    now: datetime
    title: str
    name: str
    subject: str
    status: PlanState
    state: StateLabel
    line: tuple[str, ...]
    heading: str
    facts: tuple[Fact, ...]
    why: str
    changes: tuple[Row, ...]
    template: Template | None
    job: JobSections | None
    request: Mapping[str, Any]


def plan_page(view: PlanView) -> PlanPage:
    """Return the page of a plan."""
    row, result = view.row, view.result
    name = plan_name(row.name, row.layers, row.gpus)
    if view.requested.global_batch:
        batch = f"{plural(view.requested.global_batch, 'sequence')} a batch"
    else:
        batch = plural(view.requested.microbatches or 0, "microbatch", "microbatches")
    subject = f"{plural(row.layers, 'layer')} · {batch} · {cluster_text(view.requested)}"
    template, job = None, None
    heading, why, facts = _waiting(view)
    if isinstance(result, JobResult):
        job = job_sections(result.plan, result.timeline, device_names(view.requested))
        heading, why = job_sentence(result.plan), ""
        facts = job_facts(result.plan)
    elif result is not None:
        template = _template(view, result.plan, result.timeline)
        heading, why = sentence(result.plan), ""
        facts = _facts(result.plan, result.timeline)
    proven = result is not None and result.plan.optimal
    return PlanPage(
        id=row.id,
        now=view.now,
        title=f"Plan {name}: {_short(view)}",
        name=name,
        subject=subject,
        status=row.state,
        state=PROVEN if proven else STATES[row.state],
        line=(
            # The state "Proven optimal" already implies the method, so the method is not repeated.
            *(() if proven and row.method == METHODS[0] else (METHOD_NAMES[row.method],)),
            *(
                (JOB_WORDS,)
                if view.requested.global_batch
                else (
                    OBJECTIVE_WORDS[row.objective],
                    "devices may idle" if view.requested.allow_idle else "all devices used",
                    "stages may be replicated"
                    if view.requested.replicate
                    else "a stage stays in one node",
                )
            ),
        ),
        heading=heading,
        facts=facts,
        why=why,
        changes=tuple(Row(fault.column or "", fault.message, fault.code) for fault in view.faults),
        template=template,
        job=job,
        request={
            "spec": view.spec,
            "method": row.method,
            "objective": row.objective,
            "time_limit_s": row.time_limit_s,
            **({} if row.name is None else {"name": row.name}),
        },
    )


def sentence(document: PlanDocument) -> str:
    """Return the verdict: time of an iteration, proof, and comparison with other methods."""
    text = f"{seconds(document.iteration_time_ms.simulated * MS)} an iteration"
    executed = document.objective == EXECUTED
    if document.optimal:
        text += ", proven optimal" + ("" if executed else f" by {document.objective}")
    elif document.gap is not None:
        least = "what is possible" if executed else f"the optimum by {document.objective}"
        text += f", at most {rough_percent(document.gap)} above {least}"
    else:
        text += f" by {METHOD_NAMES[document.method]}"
    parts: list[str] = []
    for name, other in document.others.items():
        template = " template" if not parts else ""
        # Within the sentence "greedy" is lower case as a word; "Ditto" is a name.
        word = "greedy" if parts and name == "greedy" else METHOD_NAMES[name]
        parts.append(f"{word}’s{template}{_against(document.over(other))}")
    others = ", ".join(parts)
    return f"{text}; {others}" if others else text


def _against(over: float) -> str:
    if abs(over) < 0.0005:  # noqa: PLR2004 - rounds to 0.0 %
        return " takes as long"
    return f" takes {percent(abs(over))} {'longer' if over > 0 else 'less'}"


def _short(view: PlanView) -> str:
    if view.result is None:
        return STATES[view.row.state].word.lower()
    document = view.result.plan
    proof = ", proven optimal" if document.optimal else ""
    return f"{seconds(document.iteration_time_ms.simulated * MS)}{proof}"


def _waiting(view: PlanView) -> tuple[str, str, tuple[Fact, ...]]:
    """Return the sentence, the explanation and the facts of a plan that has no template."""
    row = view.row
    facts = [
        Fact("Method", METHOD_NAMES[row.method], row.objective),
        Fact("Time limit", seconds(row.time_limit_s), "then the best so far"),
        Fact("Asked", "", moment=row.created_at),
    ]
    if row.state == PlanState.PLANNING:
        if row.gap is not None:
            facts.append(Fact("Gap so far", percent(row.gap), "between the best and its bound"))
        return (
            f"A worker is searching for the best pipeline on {plural(row.gpus, 'GPU')}",
            "The template appears here when it is found, without a reload.",
            tuple(facts),
        )
    if row.state == PlanState.QUEUED:
        ahead = f"{plural(view.ahead, 'task')} ahead" if view.ahead else "next in line"
        return (
            "This plan waits for a worker",
            f"It is {ahead}; the template appears here without a reload.",
            tuple(facts),
        )
    if row.state == PlanState.CANCELED:
        return "This plan was canceled", "No plan was stored. You can start it again.", ()
    reason = row.reason or "the reason was not recorded"
    code = (Fact("Code", row.reason_code or "unknown"), *facts)
    if row.state == PlanState.INFEASIBLE:
        why = "Each of these changes would be enough by itself." if view.faults else ""
        return reason[:1].upper() + reason[1:], why, code
    return f"Planning failed: {reason}", "The worker's log has the details; plan again.", code


def _facts(document: PlanDocument, timeline: SimulatedIteration) -> tuple[Fact, ...]:
    idle, least, most = idle_shares(document, timeline)
    durations = [stage.time_ms for stage in document.stages]
    note = ""
    if document.certificate is not None:
        note = f"{plural(document.certificate.intervals_explored, 'interval')} explored"
    facts = [
        Fact("Iteration", seconds(document.iteration_time_ms.simulated * MS), "simulated 1F1B"),
        _proof(document),
        Fact(
            "Stages",
            str(len(durations)),
            f"{milliseconds(min(durations))} to {milliseconds(max(durations))}{NBSP}ms each",
        ),
        Fact("GPU time idle", percent(idle), f"{percent(least)} to {percent(most)} by stage"),
        Fact("Planned in", seconds(document.planning_time_s), note),
    ]
    memory = _memory(document.stages)
    if memory is not None:
        facts.append(memory)
    return tuple(facts)


def _proof(document: PlanDocument) -> Fact:
    bound, own, gap = document.lower_bound_ms, document.cost_ms, document.gap
    if bound is None or own is None or gap is None:
        return Fact("Proof", "None", f"{METHOD_NAMES[document.method]} gives no proof")
    return Fact(
        "Proof",
        "Gap 0" if document.optimal else f"Gap {percent(gap)}",
        f"no template executes in under {seconds(bound * MS)}"
        if document.objective == EXECUTED
        else f"bound {seconds(bound * MS)} ({document.objective})",
        hint=f"{own:.6f} ms, no template below {bound:.6f} ms",
    )


def _memory(stages: Sequence[PlannedStage]) -> Fact | None:
    limited = [
        (stage.memory_bytes / stage.memory_limit_bytes, number, stage)
        for number, stage in enumerate(stages)
        if stage.memory_limit_bytes
    ]
    if not limited:
        return None
    share, number, stage = max(limited, key=lambda item: item[0])
    used, limit = stage.memory_bytes / GIB, (stage.memory_limit_bytes or 0.0) / GIB
    return Fact(
        "Memory",
        f"{rough_percent(share)} at most",
        f"{used:.1f} of {limit:.3g}{NBSP}GiB, stage {number}",
    )


def _template(view: PlanView, document: PlanDocument, timeline: SimulatedIteration) -> Template:
    names = device_names(view.requested)
    used = {stage.device for stage in document.stages}
    idle = {name: count for name, count in document.idle.items() if count}
    idle_share, _, _ = idle_shares(document, timeline)
    parts = [
        f"{METHOD_NAMES[name]}{_against(document.over(other))}"
        for name, other in document.others.items()
    ]
    return Template(
        title=_template_title(document),
        note=f"Layers 0–{document.layers - 1} over stages in pipeline order; dashed: the "
        "slowest stage; memory against what one GPU of the stage has",
        ticks=layer_ticks(document.layers),
        stages=stage_rows(document, timeline, names),
        has_memory=any(stage.memory_bytes for stage in document.stages),
        idle_devices=", ".join(f"{count} × {name}" for name, count in idle.items()),
        methods_title=(", ".join(parts) or "No other method has an answer"),
        methods=method_rows(document, names),
        legend=tuple((color_of(name, names), name) for name in names if name in used),
        schedule_title=f"GPUs idle {percent(idle_share)} of the iteration, hatched",
        schedule_note="One iteration under 1F1B, "
        f"{plural(document.microbatches, 'microbatch', 'microbatches')}; "
        "light: forward, dark: backward, hatched: bubble"
        if timeline.starts
        else "Too many computations to draw: the idle share of each stage is in the table above",
        alternatives_title=_alternatives_title(document),
        alternatives=alternative_rows(document, names),
        text="\n".join(
            f"stage {number}: layers {stage.layers[0]}-{stage.layers[1]} on "
            + " + ".join(f"{at.gpus} x {at.device} (node {at.node})" for at in stage.places)
            for number, stage in enumerate(document.stages)
        ),
        data=schedule_data(document.stages, timeline, names),
    )


def _template_title(document: PlanDocument) -> str:
    durations = [stage.time_ms for stage in document.stages]
    if len(durations) == 1:
        return "One stage holds every layer"
    spread = max(durations) / min(durations) - 1
    text = f"{plural(len(durations), 'stage')} within {rough_percent(spread)} of each other"
    if document.optimal and spread <= _EVEN:
        return f"{text}: nothing to gain by moving a layer"
    if spread > _EVEN:
        slowest = durations.index(max(durations))
        if spread >= 1:
            times = f"{max(durations) / min(durations):.3g}"
            return f"Stage {slowest} takes longest, {times} times as long as the shortest"
        return f"Stage {slowest} takes longest, {rough_percent(spread)} more than the shortest"
    return text


def _alternatives_title(document: PlanDocument) -> str:
    count = len(document.alternatives)
    if not count:
        return "No alternatives: only the optimal search looks for them"
    if count == 1:
        return "No other template comes within 2 %"
    text = f"{count} templates come within 2 % of the best"
    faster = -min(map(document.over, document.alternatives))
    if faster < 0.0005:  # noqa: PLR2004 - rounds to 0.0 %
        return text
    return f"{text} by {document.objective}; one executes {percent(faster)} faster"

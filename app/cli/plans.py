"""`paceline plan`: plan a pipeline, a whole job, or the job of a recorded session."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.analysis.diagnosis.observation import Observation
from app.analysis.documents import UnreadableDocumentError, load_document
from app.analysis.json_text import to_json
from app.analysis.mitigation.layers.costs import running_job
from app.analysis.planning.build import plan_document
from app.analysis.planning.document import NoAnswer, PlanDocument
from app.analysis.planning.job.build import job_document
from app.analysis.planning.job.plan import plan_job
from app.analysis.planning.job.spec import JobSpec
from app.analysis.planning.plan import plan, with_oobleck_templates
from app.analysis.planning.search.budget import SearchBudget
from app.analysis.replay.session import prepare_replay
from app.analysis.report.build import analyze
from app.cli.analyze import read_trace
from app.cli.files import FileError, read_document
from app.errors import InvalidSpecError, UnanalyzableError
from app.plans.specs.session import session_job, spec_of_session
from app.plans.specs.spec import parse_any_spec, unreadable_spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.analysis.planning.job.document import JobDocument, MemoryParts
    from app.analysis.planning.job.spec import Parallelism


GIB: Final = 2**30
MS_PER_S: Final = 1e3
EQUAL: Final = 1e-9
# Number of templates and pipelines that are printed; --json prints all.
MOST_LINES: Final = 16


def plan_whole_job(spec: JobSpec, budget: SearchBudget, *, as_json: bool) -> None:
    """Plan a whole job and print the plan."""
    document = job_document(plan_job(spec, budget))
    if as_json:
        sys.stdout.write(f"{to_json(document)}\n")
    else:
        show_job(document, Console())


def show_job(document: JobDocument, console: Console) -> None:
    """Print sizes, time, memory, pipelines, alternative sizes, losses of nodes, and flags."""
    times = document.iteration_time_ms

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    over = times.t_std / document.lower_bound_ms - 1
    proof = f"at most {100 * over:.1f} % above what is possible by t_std"
    if document.optimal:
        proof = (
            "proven: no plan is better by t_std"
            if over <= EQUAL
            else "the fastest to execute within 1 % of the proven least t_std"
        )
    title = f"{sizes_text(document.parallelism)}: {times.simulated / MS_PER_S:.3f} s an iteration"
    console.print(Text(f"{title}; {proof}", style="bold"), soft_wrap=True)
    _say_running(document, say)
    say(
        f"{document.tokens_per_s:,.0f} tokens/s, model FLOPs utilization "
        f"{100 * document.model_flops_utilization:.1f} %, "
        f"{document.gpu_hours_per_billion_tokens:,.0f} GPU-hours a billion tokens"
        + (
            ""
            if document.cost_per_billion_tokens is None
            else f" ({document.cost_per_billion_tokens:,.0f} by the prices given)"
        )
    )
    say(
        f"t_std {times.t_std / MS_PER_S:.3f} s; planned in "
        f"{document.planning_time_s * MS_PER_S:.0f} ms"
    )
    share = document.time
    say(
        f"Time of the GPUs: {100 * share.computing:.0f} % computing, "
        f"{100 * share.tensor_parallel:.0f} % tensor-parallel communication, "
        f"{100 * share.transfers:.0f} % transfers, {100 * share.bubble:.0f} % bubble, "
        f"{100 * share.synchronization:.0f} % gradient synchronization, "
        f"{100 * share.optimizer:.0f} % optimizer"
    )
    say(f"Fullest GPU: {_memory_text(document.memory)}")
    idle = ", ".join(f"{number} {name}" for name, number in document.idle.items() if number)
    if idle:
        say(f"Idle: {idle}")
    console.print()
    console.print(_pipelines(document))
    console.print()
    console.print(_others(document))
    console.print()
    for name, other in document.comparison.items():
        words = name.replace("_", " ")
        if other.iteration_time_ms is None or other.relative is None or other.parallelism is None:
            say(f"{words}: nothing fits")
        else:
            say(
                f"{words}: {other.iteration_time_ms.simulated / MS_PER_S:.3f} s, "
                f"{100 * (other.relative - 1):+.1f} %, {sizes_text(other.parallelism)}"
            )
    for loss in document.after_losses:
        what = f"Without {loss.nodes} {loss.device} node{'s' if loss.nodes > 1 else ''}: "
        if loss.iteration_time_ms is None:
            say(f"{what}the rest does not hold the model")
        else:
            say(
                f"{what}{loss.iteration_time_ms / MS_PER_S:.3f} s, {loss.dp} pipelines, "
                f"{loss.kept} as they are, {loss.moved_bytes / GIB:.0f} GiB of states to move"
            )
    for flag in document.flags:
        say(f"{flag.framework}: {flag.flags}")
        for unsaid in flag.unsaid:
            say(f"  cannot express {unsaid}")


def sizes_text(sizes: Parallelism) -> str:
    """Return sizes as text: ``dp 4 × pp 8 × tp 8, …``."""
    text = f"dp {sizes.dp} × pp {sizes.pp} × tp {sizes.tp}, microbatch {sizes.microbatch}"
    if sizes.interleave > 1:
        text += f", {sizes.interleave} chunks"
    return f"{text}, recompute {sizes.recompute.value}"


def _say_running(document: JobDocument, say: Callable[[str], None]) -> None:
    runs = document.as_it_runs
    if runs is None:
        return
    parts = (("dp", runs.dp), ("pp", runs.pp), ("tp", runs.tp))
    text = " × ".join(f"{name} {size}" for name, size in parts if size is not None)
    say(
        f"As it runs: {runs.iteration_time_ms / MS_PER_S:.3f} s, "
        f"{100 * (runs.relative - 1):+.1f} %{text and f', {text}'}"
    )


def _memory_text(memory: MemoryParts) -> str:
    parts = (
        ("weights", memory.weights),
        ("gradients", memory.gradients),
        ("optimizer", memory.optimizer),
        ("activations", memory.activations),
        ("other", memory.other),
        ("margin", memory.margin),
    )
    said = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts)
    return f"{memory.total / GIB:.1f} GiB ({said})"


def _pipelines(document: JobDocument) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("Pipelines", "Nodes", "Layers by stage"):
        table.add_column(name)
    table.add_column("Microbatches", justify="right")
    table.add_column("Time", justify="right")
    seen: dict[tuple[int, int], int] = {}
    for pipeline in document.pipelines:
        key = pipeline.template, pipeline.microbatches
        seen[key] = seen.get(key, 0) + 1
    for (number, microbatches), count in list(seen.items())[:MOST_LINES]:
        template = document.templates[number]
        time_ms = max(
            pipeline.time_ms
            for pipeline in document.pipelines
            if (pipeline.template, pipeline.microbatches) == (number, microbatches)
        )
        cuts = [
            f"{stage.layers[1] - stage.layers[0] + 1} {stage.device}" for stage in template.stages
        ]
        table.add_row(
            str(count),
            " + ".join(f"{nodes} {name}" for name, nodes in template.nodes.items())
            + (
                f" for {template.pipelines_per_node_set}"
                if template.pipelines_per_node_set > 1
                else ""
            ),
            " | ".join(cuts),
            str(microbatches),
            f"{time_ms / MS_PER_S:.3f} s",
        )
    return table


def _others(document: JobDocument) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("dp", "pp", "tp", "microbatch", "chunks"):
        table.add_column(name, justify="right")
    table.add_column("recompute")
    for name in ("Iteration", "Above", "Memory"):
        table.add_column(name, justify="right")
    for other in document.alternatives:
        sizes = other.parallelism
        table.add_row(
            *map(str, (sizes.dp, sizes.pp, sizes.tp, sizes.microbatch, sizes.interleave)),
            sizes.recompute.value,
            f"{other.iteration_time_ms.simulated / MS_PER_S:.3f} s",
            f"{100 * (other.relative - 1):.1f} %",
            f"{other.memory_bytes / GIB:.1f} GiB",
        )
    return table


PLAN_GIB = 2**30
PLAN_MS_PER_S = 1e3


def plan_file(
    path: Path, method: str, objective: str, time_limit: float | None, *, as_json: bool
) -> None:
    """Plan the specification in a file and print the plan."""
    spec = parse_any_spec(read_spec(path), lambda name: read_spec(path.parent / name))
    deadline = None if time_limit is None else time.monotonic() + time_limit
    budget = SearchBudget(time.monotonic, deadline)
    if isinstance(spec, JobSpec):
        plan_whole_job(spec, budget, as_json=as_json)
        return
    planned = plan(spec, method=method, objective=objective, budget=budget, compare=True)
    if method == "ditto":
        planned = with_oobleck_templates(planned, SearchBudget(time.monotonic))
    document = plan_document(planned)
    if as_json:
        sys.stdout.write(f"{to_json(document)}\n")
    else:
        show(document, Console())


def read_spec(path: Path) -> object:
    """Read a specification, including a profile that the specification refers to."""
    try:
        return load_document(read_document(path))
    except FileError as error:
        raise InvalidSpecError(error.message, code="spec.not_readable") from error
    except UnreadableDocumentError as error:
        raise unreadable_spec(error, str(path)) from error


def show(document: PlanDocument, console: Console) -> None:
    """Print the template, its proven bound, and Ditto's template."""
    times = document.iteration_time_ms
    console.print(Text(_sentence(document), style="bold"), soft_wrap=True)
    oobleck = "" if times.t_oobleck is None else f", T_oobleck {_seconds(times.t_oobleck)}"
    console.print(
        f"simulated 1F1B {_seconds(times.simulated)}, t_std {_seconds(times.t_std)}{oobleck}; "
        f"planned in {document.planning_time_s * PLAN_MS_PER_S:.0f} ms",
        highlight=False,
        soft_wrap=True,
    )
    console.print()
    console.print(_stage_table(document))
    _show_remarks(document, console)
    for name, other in document.comparison.items():
        if isinstance(other, NoAnswer):
            line = other.reason
        else:
            change = (
                "not comparable"
                if other.relative is None
                else f"{100 * (other.relative - 1):+.1f} %"
            )
            line = (
                f"{_seconds(other.iteration_time_ms.simulated)} simulated, "
                f"{_seconds(other.iteration_time_ms.t_std)} t_std, "
                f"{change} by {document.objective}"
            )
        console.print(f"{name}: {line}", highlight=False, soft_wrap=True)


def _seconds(ms: float) -> str:
    return f"{ms / PLAN_MS_PER_S:.3f} s"


def _sentence(document: PlanDocument) -> str:
    stages = len(document.stages)
    what = f"{stages} stages, {_seconds(document.iteration_time_ms.simulated)} an iteration"
    executed = document.objective == "simulated"
    if document.optimal:
        better = "executes faster" if executed else f"is better by {document.objective}"
        return f"{what}; proven: no template {better}"
    if document.gap is not None:
        least = (
            "what any template can execute in"
            if executed
            else f"the optimum by {document.objective}"
        )
        return f"{what}; at most {100 * document.gap:.1f} % above {least}"
    return f"{what}, by {document.method}"


def _stage_table(document: PlanDocument) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("Stage", "Layers", "Device"):
        table.add_column(name)
    for name in ("Forward", "Backward", "Memory"):
        table.add_column(name, justify="right")
    for number, stage in enumerate(document.stages):
        first, last = stage.layers
        limit, memory = stage.memory_limit_bytes, f"{stage.memory_bytes / PLAN_GIB:.1f}"
        table.add_row(
            str(number),
            f"{first}–{last}",
            " + ".join(f"{at.gpus} × {at.device} node {at.node}" for at in stage.places),
            f"{stage.forward_ms:.1f} ms",
            f"{stage.backward_ms:.1f} ms",
            f"{memory} GiB" if limit is None else f"{memory} of {limit / PLAN_GIB:.1f} GiB",
        )
    return table


def _show_remarks(document: PlanDocument, console: Console) -> None:
    idle = ", ".join(f"{number} {name}" for name, number in document.idle.items() if number)
    if idle:
        console.print(f"Idle: {idle}", highlight=False)
    if not document.fits_memory:
        console.print("This template does not fit the memory of its devices.", highlight=False)
    if not document.contiguous_nodes:
        console.print("Stages of one node do not follow each other.", highlight=False)
    folding, virtual = document.folding, document.virtual_template
    if folding is not None and virtual is not None:
        factors = ", ".join(f"{name} {n}" for name, n in folding.factors.items())
        console.print(
            f"Folded into {folding.virtual_nodes} nodes of {folding.virtual_gpus_per_node} "
            f"{folding.weakest}: {factors}; virtual template of {len(virtual.stages)} stages, "
            f"{len(document.oobleck_templates)} templates of Oobleck (--json has them)",
            highlight=False,
            soft_wrap=True,
        )
    others = document.alternatives
    if others:
        console.print(
            f"{len(others)} templates within 2 %, the best takes "
            f"{_seconds(others[0].iteration_time_ms.simulated)} simulated",
            highlight=False,
        )
    console.print()


def plan_trace(path: Path, meta: Path | None, time_limit: float | None, *, as_json: bool) -> None:
    """Plan the whole job of a trace and print the plan."""
    trace = read_trace(path, meta)
    job = session_job(trace.meta)
    running = running_job(Observation(trace, prepare_replay(trace).main), job.layers)
    if running is None:
        raise UnanalyzableError(
            "stages do not all compute the same microbatches, forward and backward",
            code="plan.not_measured",
        )
    recorded = analyze(trace).report.step_times.recorded
    spec = parse_any_spec(spec_of_session(job, running, sum(recorded) / len(recorded)))
    assert isinstance(spec, JobSpec)  # noqa: S101 - it has a global batch
    deadline = None if time_limit is None else time.monotonic() + time_limit
    plan_whole_job(spec, SearchBudget(time.monotonic, deadline), as_json=as_json)

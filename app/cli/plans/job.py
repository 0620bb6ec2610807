"""The plan of a whole job in the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.analysis.json_text import to_json
from app.analysis.planning.job.build import job_document
from app.analysis.planning.job.plan import plan_job

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.analysis.planning.job.document import JobDocument, MemoryParts
    from app.analysis.planning.job.model import JobSpec, Parallelism
    from app.analysis.planning.search.budget import SearchBudget

GIB: Final = 2**30
MS_PER_S: Final = 1e3
EQUAL: Final = 1e-9
# Templates and pipelines that are printed; --json has all.
MOST_LINES: Final = 16


def plan_whole_job(spec: JobSpec, budget: SearchBudget, *, as_json: bool) -> None:
    """Plan a whole job and print what came out."""
    document = job_document(plan_job(spec, budget))
    if as_json:
        sys.stdout.write(f"{to_json(document)}\n")
    else:
        show_job(document, Console())


def show_job(document: JobDocument, console: Console) -> None:
    """Print sizes, time, memory, pipelines, other sizes, losses of nodes, flags."""
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
    for one in document.flags:
        say(f"{one.framework}: {one.flags}")
        for unsaid in one.unsaid:
            say(f"  cannot express {unsaid}")


def sizes_text(sizes: Parallelism) -> str:
    """Return sizes as one writes them: ``dp 4 × pp 8 × tp 8, …``."""
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
    for one in document.pipelines:
        key = one.template, one.microbatches
        seen[key] = seen.get(key, 0) + 1
    for (number, microbatches), count in list(seen.items())[:MOST_LINES]:
        template = document.templates[number]
        time_ms = max(
            one.time_ms
            for one in document.pipelines
            if (one.template, one.microbatches) == (number, microbatches)
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

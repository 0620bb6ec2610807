"""`paceline plan`: a specification in, a pipeline template in the terminal or a document out."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.analysis.documents import UnreadableDocumentError, load_document
from app.analysis.json_text import to_json
from app.analysis.planning.build import plan_document
from app.analysis.planning.document import NoAnswer, PlanDocument
from app.analysis.planning.job.model import JobSpec
from app.analysis.planning.plan import plan, with_oobleck_templates
from app.analysis.planning.search.budget import SearchBudget
from app.cli.files import FileError, read_document
from app.cli.plans.job import plan_whole_job
from app.errors import InvalidSpecError
from app.inputs.plans.spec import parse_any_spec, unreadable_spec

GIB = 2**30
MS_PER_S = 1e3


def plan_file(
    path: Path, method: str, objective: str, time_limit: float | None, *, as_json: bool
) -> None:
    """Plan what a file specifies and print what came out."""
    spec = parse_any_spec(read_spec(path), lambda name: read_spec(path.parent / name))
    deadline = None if time_limit is None else time.monotonic() + time_limit
    budget = SearchBudget(time.monotonic, deadline)
    if isinstance(spec, JobSpec):
        plan_whole_job(spec, budget, as_json=as_json)
        return
    found = plan(spec, method=method, objective=objective, budget=budget, compare=True)
    if method == "ditto":
        found = with_oobleck_templates(found, SearchBudget(time.monotonic))
    document = plan_document(found)
    if as_json:
        sys.stdout.write(f"{to_json(document)}\n")
    else:
        show(document, Console())


def read_spec(path: Path) -> object:
    """Read a specification, or a profile that one names."""
    try:
        return load_document(read_document(path))
    except FileError as error:
        raise InvalidSpecError(error.message, code="spec.not_readable") from error
    except UnreadableDocumentError as error:
        raise unreadable_spec(error, str(path)) from error


def show(document: PlanDocument, console: Console) -> None:
    """Print the template, what is proven of it, and what Ditto would have given."""
    times = document.iteration_time_ms
    console.print(Text(_sentence(document), style="bold"), soft_wrap=True)
    oobleck = "" if times.t_oobleck is None else f", T_oobleck {_seconds(times.t_oobleck)}"
    console.print(
        f"simulated 1F1B {_seconds(times.simulated)}, t_std {_seconds(times.t_std)}{oobleck}; "
        f"planned in {document.planning_time_s * MS_PER_S:.0f} ms",
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
            line = (
                f"{_seconds(other.iteration_time_ms.simulated)} simulated, "
                f"{_seconds(other.iteration_time_ms.t_std)} t_std, "
                f"{_difference(other.relative)} by {document.objective}"
            )
        console.print(f"{name}: {line}", highlight=False, soft_wrap=True)


def _seconds(ms: float) -> str:
    return f"{ms / MS_PER_S:.3f} s"


def _difference(relative: float | None) -> str:
    return "not comparable" if relative is None else f"{100 * (relative - 1):+.1f} %"


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
        limit, memory = stage.memory_limit_bytes, f"{stage.memory_bytes / GIB:.1f}"
        table.add_row(
            str(number),
            f"{first}–{last}",
            " + ".join(f"{at.gpus} × {at.device} node {at.node}" for at in stage.places),
            f"{stage.forward_ms:.1f} ms",
            f"{stage.backward_ms:.1f} ms",
            f"{memory} GiB" if limit is None else f"{memory} of {limit / GIB:.1f} GiB",
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

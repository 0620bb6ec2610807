"""The files behind the figures of a whole job's plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from app.analysis.json_text import plain
from app.analysis.planning.job.document import AfterLossDocument
from app.dashboard.ui.csv_text import Table

if TYPE_CHECKING:
    from app.analysis.planning.job.document import JobDocument


def _json(document: JobDocument) -> str:
    return json.dumps(plain(document), indent=1, allow_nan=False) + "\n"


def _pipelines(document: JobDocument) -> Table:
    return Table(
        ("pipeline", "template", "microbatches", "time_ms", "nodes"),
        (
            (
                number,
                one.template,
                one.microbatches,
                one.time_ms,
                " ".join(f"{node.device}:{node.node}" for node in one.nodes),
            )
            for number, one in enumerate(document.pipelines)
        ),
    )


def _memory(document: JobDocument) -> Table:
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


def _sizes(document: JobDocument) -> Table:
    return Table(
        (
            "tp", "pp", "dp", "microbatch", "recompute", "interleave", "simulated_ms", "t_std_ms",
            "memory_bytes",
        ),
        (
            (
                one.parallelism.tp, one.parallelism.pp, one.parallelism.dp,
                one.parallelism.microbatch, one.parallelism.recompute.value,
                one.parallelism.interleave, one.iteration_time_ms.simulated,
                one.iteration_time_ms.t_std, one.memory_bytes,
            )
            for one in document.alternatives
        ),
    )  # fmt: skip


def _simpler(document: JobDocument) -> Table:
    return Table(
        ("way", "simulated_ms", "t_std_ms", "relative"),
        (
            (
                name,
                one.iteration_time_ms and one.iteration_time_ms.simulated,
                one.iteration_time_ms and one.iteration_time_ms.t_std,
                one.relative,
            )
            for name, one in document.comparison.items()
        ),
    )


def _running(document: JobDocument) -> Table:
    runs, same = document.as_it_runs, document.comparison.get("same_sizes")
    times = same and same.iteration_time_ms
    ways = (
        ("as_it_runs", runs and runs.iteration_time_ms),
        ("same_sizes", times and times.simulated),
        ("plan", document.iteration_time_ms.simulated),
    )
    return Table(("way", "iteration_ms"), ways)


JOB_FILES: Final[Mapping[str, Callable[[JobDocument], Table | str]]] = {
    "plan.json": _json,
    "pipelines.csv": _pipelines,
    "memory.csv": _memory,
    "sizes.csv": _sizes,
    "simpler.csv": _simpler,
    "running.csv": _running,
    "losses.csv": lambda document: Table.of(AfterLossDocument, document.after_losses),
}

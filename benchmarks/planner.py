"""Planning times of every method, and Ditto's templates compared with the proven optimum.

``make bench`` prints the times, as ``python -m benchmarks.planner`` alone does; with ``--table``
the table of docs/planner.md.
The folder in PACELINE_REFERENCE_PROFILE, or gpt2-xl-profile next to that in
PACELINE_REFERENCE_DATA, contains the published profile of GPT2-XL (``layers.json``); without it
only models of equal blocks are planned.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from app.analysis.planning.job.costs import GEMM_EFFICIENCY
from app.analysis.planning.job.plan import plan_job
from app.analysis.planning.job.spec import JobDevice, JobSpec
from app.analysis.planning.plan import FoundPlan, plan
from app.analysis.planning.problem import PS_PER_MS
from app.analysis.planning.search.budget import SearchBudget
from app.analysis.planning.spec import METHODS, DeviceType, Layer, Spec
from app.analysis.planning.template import evaluate
from app.analysis.planning.transformer import Accelerator, Transformer
from app.analysis.planning.warm_up import warm_up
from app.errors import InfeasiblePlanError
from benchmarks.support.clusters import (
    CLUSTERS,
    SPEEDS,
    real_example,
    reference_profile,
    uniform_example,
)
from benchmarks.support.measuring import peak_bytes

_REPEATS: Final = 20
_LARGE: Final = (32, 64, 128, 256, 512)
# Whole jobs by their number of GPUs, with the target of each.
_JOBS: Final = (128, 1024)
_JOB_MEANT: Final = {128: "1 s, proven", 1024: "30 s, a gap of 5 %"}
_JOB_TYPES: Final = ("A100", "H100", "H200", "L40S")
_JOB_LIMIT_S: Final = 25.0
# Time limit, s: afterwards the optimal search returns its bound, and other methods are stopped.
_TIME_LIMIT_S: Final = 10.0
# Time limit of a complete search, s, so that the benchmark ends on any machine.
_LONGEST_S: Final = 120.0
MIB: Final = 1024 * 1024
# Objectives of the table and the methods that are compared by each; T is Ditto's own objective.
_COMPARED: Final = {"t_oobleck": ("ditto",), "t_std": ("ditto", "greedy"), "simulated": ("ditto",)}


@dataclass(frozen=True, slots=True)
class Example:
    """A cluster of Ditto's evaluation with a model and a table of speeds."""

    name: str
    model: str
    speeds: str
    spec: Spec


def examples() -> list[Example]:
    """Return the examples whose data are available on this machine."""
    folder = reference_profile()
    examples_ = []
    for speeds in SPEEDS:
        for name in CLUSTERS:
            if folder:
                examples_.append(Example(name, "real", speeds, real_example(folder, name, speeds)))
            examples_.append(Example(name, "uniform", speeds, uniform_example(name, speeds)))
    return examples_


def large_cluster(gpus: int, layers: int = 98) -> Spec:
    """Return a cluster of four types with eight devices a node, and uneven layers."""
    draw = random.Random(gpus)  # noqa: S311 - no secret
    blocks = tuple(
        Layer(ms, 3 * ms) for ms in (0.5, *(draw.uniform(10, 40) for _ in range(layers - 2)), 11.0)
    )
    speeds = (1.0, 1.8, 2.15, 2.94)
    devices = tuple(
        DeviceType(f"type{i}", gpus // 32, 8, speed=speed) for i, speed in enumerate(speeds)
    )
    return Spec(blocks, 2.94, devices, 50)


def planning_seconds(spec: Spec, method: str) -> float:
    """Return the planning time, s.

    Raises
    ------
    InfeasiblePlanError
        The method has no answer, or none within `_TIME_LIMIT_S`.
    """
    budget = SearchBudget(time.perf_counter, time.perf_counter() + _TIME_LIMIT_S)
    return plan(spec, method=method, budget=budget, compare=False).planning_time_s


def other_methods(spec: Spec) -> str:
    """Return the planning times of every method except the optimal search."""
    cells = []
    for method in METHODS[1:]:
        began = time.perf_counter()
        try:
            cells.append(f"{method} {planning_seconds(spec, method):.2f} s")
        except InfeasiblePlanError as error:
            late = time.perf_counter() - began >= _TIME_LIMIT_S
            cells.append(f"{method} {'too slow' if late else _SHORT_REASONS[error.stable_code]}")
    return ", ".join(cells)


_SHORT_REASONS: Final = {
    "plan.no_answer": "no answer",
    "plan.too_large": "too large",
    "plan.ditto_too_few_layers": "too few layers",
}


def measure_planner() -> Iterator[str]:
    """Yield the planning times of the examples and of large clusters."""
    warm_up()
    everything: list[float] = []
    cpu: list[float] = []
    for example in examples():
        optimal = []
        for _ in range(_REPEATS):
            began = time.process_time()
            optimal.append(planning_seconds(example.spec, "optimal"))
            cpu.append(time.process_time() - began)
        everything += optimal
        yield (
            f"{example.name:<5} {example.model:<8} {example.speeds:<6} "
            f"optimal median {statistics.median(optimal) * 1e3:.0f} ms, "
            f"p95 {_p95(optimal) * 1e3:.0f} ms, {other_methods(example.spec)}"
        )
    yield (
        f"optimal, all of them: p95 {_p95(everything) * 1e3:.0f} ms, of the processor's time "
        f"{_p95(cpu) * 1e3:.0f} ms (meant: 100 ms)"
    )
    for gpus in _LARGE:
        yield _in_own_process("--gpus", gpus)
    for gpus in _JOBS:
        yield _in_own_process("--job", gpus)


def _p95(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=20)[-1]


def _in_own_process(option: str, gpus: int) -> str:
    """Plan a large cluster in a separate process, which measures its peak memory."""
    done = subprocess.run(  # noqa: S603 - this interpreter and our own module
        [sys.executable, "-m", "benchmarks.planner", option, str(gpus)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout.strip()


def measure_large(gpus: int) -> str:
    """Plan a large cluster by a complete search, by one of limited time, and by other methods."""
    warm_up()
    spec = large_cluster(gpus)
    began, busy_since = time.perf_counter(), time.process_time()
    planned = plan(spec, budget=SearchBudget(time.perf_counter, began + _LONGEST_S), compare=False)
    whole, busy = time.perf_counter() - began, time.process_time() - busy_since
    peak = peak_bytes() / MIB
    limited = ""
    if whole > _TIME_LIMIT_S:
        deadline = time.process_time() + _TIME_LIMIT_S
        early = plan(spec, budget=SearchBudget(time.process_time, deadline), compare=False)
        limited = f", after {_TIME_LIMIT_S:.0f} s of the processor a gap of {_gap(early)}"
    proven = "proven" if planned.optimal else f"proven gap {_gap(planned)}"
    return (
        f"{gpus} devices of 4 types, {len(spec.layers)} layers: optimal {whole:.2f} s "
        f"({busy:.2f} s of the processor), {proven}, peak memory {peak:.0f} MiB{limited}; "
        f"{other_methods(spec)}"
    )


def whole_job(gpus: int) -> JobSpec:
    """Return a large model on nodes of two types, on more than 128 GPUs of four."""
    types = _JOB_TYPES if gpus > _JOBS[0] else _JOB_TYPES[:2]
    return JobSpec(
        Transformer(80, 8192, 64, 51200, 2048, 1, 32768, 64),
        tuple(
            JobDevice(Accelerator.known(name), gpus // 8 // len(types), GEMM_EFFICIENCY, 200.0)
            for name in types
        ),
        gpus_per_node=8,
        global_batch=2048 if gpus > _JOBS[0] else 512,
        inter_node_gbytes_per_s=200.0,
    )


def measure_job(gpus: int) -> str:
    """Plan a whole job, in at most half a minute."""
    warm_up()
    spec = whole_job(gpus)
    began, busy_since = time.perf_counter(), time.process_time()
    budget = SearchBudget(time.process_time, busy_since + _JOB_LIMIT_S)
    planned = plan_job(spec, budget, compare=False)
    whole, busy = time.perf_counter() - began, time.process_time() - busy_since
    proven = "proven" if planned.optimal else f"proven gap {_percent(planned.gap, '.2f')}"
    return (
        f"whole job, {gpus} devices of {len(spec.devices)} types: {whole:.2f} s "
        f"({busy:.2f} s of the processor), {proven}, peak memory {peak_bytes() / MIB:.0f} MiB "
        f"(meant: {_JOB_MEANT[gpus]}, below 1 GB)"
    )


def _gap(planned: FoundPlan) -> str:
    return "unknown" if planned.gap is None else _percent(planned.gap, ".2f")


def _percent(share: float, form: str = "+.1f") -> str:
    return f"{100 * share:{form}} %"


def ditto_table() -> Iterator[str]:
    """Yield the table of docs/planner.md: the best template by each objective, and the others."""
    columns = ("T, s", "Ditto", "t_std, s", "Ditto", "greedy", "executed, s", "Ditto")
    yield "| example | layers | speeds | " + " | ".join(columns) + " |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for example in examples():
        cells = []
        for objective, methods in _COMPARED.items():
            best = plan(example.spec, objective=objective)
            least = evaluate(best.problem, best.template).by(objective)
            cells.append(f"{least / PS_PER_MS / 1e3:.3f}")
            for method in methods:
                other = best.comparison.get(method)
                if other is None:
                    cells.append("no answer")
                else:
                    own = evaluate(other.problem, other.template).by(objective)
                    cells.append(_percent(own / least - 1))
        yield f"| {example.name} | {example.model} | {example.speeds} | " + " | ".join(cells) + " |"


def main() -> None:
    """Print the times, or with `--table` the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="the table of docs/planner.md")
    parser.add_argument("--job", type=int, choices=_JOBS, help="one whole job only, by its GPUs")
    parser.add_argument("--gpus", type=int, help="one large cluster only")
    arguments = parser.parse_args()
    if arguments.gpus:
        lines: Iterator[str] = iter([measure_large(arguments.gpus)])
    elif arguments.job:
        lines = iter([measure_job(arguments.job)])
    elif arguments.table:
        lines = ditto_table()
    else:
        lines = measure_planner()
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    main()

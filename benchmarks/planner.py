"""Planning times of every method, and Ditto's templates held against the proven optimum.

``python -m benchmarks.planner`` prints the times; with ``--table`` the table of docs/planner.md.
The folder in PACELINE_REFERENCE_PROFILE has the published profile of GPT2-XL (``layers.json``);
without it only equal blocks are planned.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.analysis.planning.budget import Budget
from app.analysis.planning.plan import plan
from app.analysis.planning.problem import PS_PER_MS
from app.analysis.planning.spec import DeviceType, Layer, Spec
from app.analysis.planning.template import evaluate
from app.analysis.planning.warm_up import warm_up
from app.errors import InfeasiblePlanError
from benchmarks.peak import peak_bytes
from tests.support.clusters import CLUSTERS, SPEEDS, real_example, uniform_example

_REPEATS: Final = 20
_LARGE: Final = (32, 64, 128, 256, 512)
_TIME_LIMIT_S: Final = 10.0
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Example:
    """A cluster of Ditto's evaluation with a model and a table of speeds."""

    name: str
    model: str
    speeds: str
    spec: Spec


def examples() -> list[Example]:
    """Return every example that can be made here."""
    folder = os.environ.get("PACELINE_REFERENCE_PROFILE")
    found = []
    for speeds in SPEEDS:
        for name in CLUSTERS:
            if folder:
                found.append(
                    Example(name, "real", speeds, real_example(Path(folder), name, speeds))
                )
            found.append(Example(name, "uniform", speeds, uniform_example(name, speeds)))
    return found


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


def planning_seconds(spec: Spec, method: str, repeats: int) -> list[float]:
    """Return how long planning took each time; nothing where the method has no answer."""
    taken = []
    for _ in range(repeats):
        try:
            found = plan(spec, method=method, budget=Budget(time.perf_counter), compare=False)
        except InfeasiblePlanError:
            return []
        taken.append(found.planning_time_s)
    return taken


def measure_planner() -> Iterator[str]:
    """Yield the planning times of the examples and of large clusters."""
    warm_up()
    everything: list[float] = []
    for example in examples():
        optimal = planning_seconds(example.spec, "optimal", _REPEATS)
        everything += optimal
        median, worst = statistics.median(optimal) * 1e3, max(optimal) * 1e3
        cells = [f"optimal median {median:.0f} ms, max {worst:.0f} ms"]
        for method in ("ditto", "greedy"):
            taken = planning_seconds(example.spec, method, 1)
            cells.append(f"{method} {taken[0]:.2f} s" if taken else f"{method} no answer")
        yield f"{example.name:<5} {example.model:<8} {example.speeds:<6} " + ", ".join(cells)
    p95 = statistics.quantiles(everything, n=20)[-1]
    yield f"optimal, all of them: p95 {p95 * 1e3:.0f} ms"
    for gpus in _LARGE:
        yield _in_own_process(gpus)


def _in_own_process(gpus: int) -> str:
    """Plan a large cluster in a process that does nothing else, for its peak memory."""
    done = subprocess.run(  # noqa: S603 - this interpreter and our own module
        [sys.executable, "-m", "benchmarks.planner", "--gpus", str(gpus)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout.strip()


def measure_large(gpus: int) -> str:
    """Plan a large cluster to the end, and again for some seconds only."""
    warm_up()
    spec = large_cluster(gpus)
    began = time.perf_counter()
    found = plan(spec, compare=False)
    whole = time.perf_counter() - began
    peak = peak_bytes() / MIB
    limited = ""
    if whole > _TIME_LIMIT_S:
        deadline = time.perf_counter() + _TIME_LIMIT_S
        early = plan(spec, budget=Budget(time.perf_counter, deadline), compare=False)
        gap = early.certificate.gap if early.certificate else float("nan")
        limited = f"; after {_TIME_LIMIT_S:.0f} s a proven gap of {gap:.2%}"
    proven = "proven" if found.optimal else "not proven"
    return (
        f"{gpus} devices of 4 types, {len(spec.layers)} layers: optimal {whole:.2f} s, {proven}, "
        f"peak memory {peak:.0f} MiB{limited}"
    )


def ditto_table() -> Iterator[str]:
    """Yield the table of docs/planner.md."""
    yield "| example | layers | speeds | optimum, s | Ditto | greedy | simulated, s | Ditto |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for example in examples():
        found = plan(example.spec)
        best = evaluate(found.problem, found.template)
        cells = [f"{best.t_std / PS_PER_MS / 1e3:.3f}"]
        for name in ("ditto", "greedy"):
            other = found.comparison.get(name)
            if other is None:
                cells.append("no answer")
            else:
                cells.append(
                    f"{evaluate(other.problem, other.template).t_std / best.t_std - 1:+.1%}"
                )
        cells.append(f"{best.simulated / PS_PER_MS / 1e3:.3f}")
        ditto = found.comparison.get("ditto")
        if ditto is None:
            cells.append("no answer")
        else:
            simulated = evaluate(ditto.problem, ditto.template).simulated
            cells.append(f"{simulated / best.simulated - 1:+.1%}")
        yield f"| {example.name} | {example.model} | {example.speeds} | " + " | ".join(cells) + " |"


def main(arguments: list[str]) -> None:
    """Print what the arguments ask for."""
    if arguments[:1] == ["--gpus"]:
        print(measure_large(int(arguments[1])))
        return
    for line in ditto_table() if arguments == ["--table"] else measure_planner():
        print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

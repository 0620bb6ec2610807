"""Whole jobs on random mixes of four types on 1,024 GPUs: the gap that is proven, and its cost.

``python -m benchmarks.job_mixes`` prints a line for each of 24 mixes (``--count``), each planned in
a process of its own, and how their gaps are distributed. The draw is the same each time.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from typing import Final

from app.analysis.planning.job.search import search_job
from app.analysis.planning.job.spec import JobDevice, JobSpec
from app.analysis.planning.search.budget import SearchBudget
from app.analysis.planning.transformer import CATALOGUE, Accelerator, Transformer
from app.analysis.planning.warm_up import warm_up
from benchmarks.peak import peak_bytes

NODES: Final = 128
TYPES: Final = 4
LIMIT_S: Final = 25.0
MEANT: Final = 0.05
MIB: Final = 1024 * 1024
# Blocks, hidden units, heads and key-value heads of models of 7 to 175 billion parameters.
MODELS: Final = {
    "7B": (32, 4096, 32, 32),
    "13B": (40, 5120, 40, 40),
    "30B": (48, 7168, 56, 56),
    "70B": (80, 8192, 64, 8),
    "175B": (96, 12288, 96, 96),
}


def mix(number: int) -> tuple[str, JobSpec]:
    """Return a random job and what it is."""
    draw = random.Random(number)  # noqa: S311 - the same mixes each time
    names = draw.sample(sorted(device.name for device in CATALOGUE), TYPES)
    cuts = sorted(draw.sample(range(1, NODES), TYPES - 1))
    counts = [end - start for start, end in zip([0, *cuts], [*cuts, NODES], strict=True)]
    model = draw.choice(sorted(MODELS))
    layers, hidden, heads, kv_heads = MODELS[model]
    sequence = draw.choice((2048, 4096, 8192))
    batch = draw.choice((512, 1024, 1536, 2048, 3072, 4096))
    network = draw.choice((50.0, 100.0, 200.0, 400.0))
    devices = tuple(
        JobDevice(
            Accelerator.known(name),
            count,
            round(draw.uniform(0.4, 0.7), 2),
            draw.choice((25.0, 100.0, 200.0, 450.0)),
        )
        for name, count in zip(names, counts, strict=True)
    )
    spec = JobSpec(
        Transformer(layers, hidden, heads, 50257, sequence, 1, 4 * hidden, kv_heads),
        devices,
        gpus_per_node=8,
        global_batch=batch,
        inter_node_gbytes_per_s=network,
    )
    nodes = ", ".join(f"{device.nodes} {device.name}" for device in devices)
    return f"{model}, {nodes}; sequence {sequence}, batch {batch}, {network:.0f} GB/s", spec


def measure(number: int) -> str:
    """Plan a mix; the first word is its gap in per cent."""
    warm_up()
    what, spec = mix(number)
    busy_since = time.process_time()
    found = search_job(spec, SearchBudget(time.process_time, busy_since + LIMIT_S))
    busy = time.process_time() - busy_since
    gap = "nothing fits" if found is None else f"{100 * found.gap:.1f} %"
    sizes = ""
    if found is not None:
        own = found.plan.space.sizes
        sizes = (
            f"tp {own.tp} pp {found.plan.pp} dp {found.plan.dp} microbatch {own.microbatch} "
            f"{own.recompute.value}, {found.plan.time_ps / 1e12:.2f} s"
        )
    return f"{gap} in {busy:.1f} s, {peak_bytes() / MIB:.0f} MiB | {number}: {what} | {sizes}"


def main() -> None:
    """Print what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=24, help="mixes")
    parser.add_argument("--one", type=int, help="one mix only, by its number")
    arguments = parser.parse_args()
    if arguments.one is not None:
        print(measure(arguments.one))
        return
    gaps = []
    for number in range(arguments.count):
        done = subprocess.run(  # noqa: S603 - this interpreter and our own module
            [sys.executable, "-m", "benchmarks.job_mixes", "--one", str(number)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        print(done.stdout.strip(), flush=True)
        gap, unit = done.stdout.split()[:2]
        if unit == "%":
            gaps.append(float(gap) / 100)
    within = sum(gap <= MEANT for gap in gaps)
    print(
        f"{within} of {len(gaps)} within {100 * MEANT:.0f} %, median "
        f"{100 * sorted(gaps)[len(gaps) // 2]:.1f} %, worst {100 * max(gaps):.1f} %"
    )


if __name__ == "__main__":
    main()
